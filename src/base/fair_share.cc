// Fewer threads at once, more of them step by step.
#include "base/fair_share.h"

#include <algorithm>
#include <cmath>

namespace dsmoe {
namespace {

constexpr double kLook = 0.010, kAttemptLook = 0.004;  // seconds of runs
constexpr double kTolerated = 0.25;                    // threads that wait, on average
// From a failure to the next attempt, twice as long after each failure.
constexpr double kShortest = 0.2, kLongest = 4;
constexpr double kQuiet = 1;  // after that much time without a failure, it is short again

}  // namespace

FairShare::FairShare(int most) : most_(most), now_(most), patience_(kShortest / 2) {}

double FairShare::next_look() const { return since_change_ == 0 ? kAttemptLook : kLook; }

void FairShare::note(double seconds, double delayed) {
  since_change_ += seconds;
  const double lost = delayed / seconds;
  if (now_ > 1 && lost > kTolerated) return reduce(lost);
  if (now_ == most_) {
    if (since_change_ > kQuiet) patience_ = kShortest / 2;
  } else if (step_ > 1 || since_change_ > patience_) {
    now_ = std::min(most_, now_ + step_);
    step_ *= 2;
    since_change_ = 0;
  }
}

void FairShare::reduce(double lost) {
  now_ = std::max(1, now_ - std::max(1, static_cast<int>(std::lround(lost))));
  patience_ = std::min(kLongest, 2 * patience_);
  step_ = 1;
  since_change_ = 0;
}

}  // namespace dsmoe

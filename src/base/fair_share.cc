// Fewer threads at once, more of them step by step.
#include "base/fair_share.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dsmoe {
namespace {

// Seconds of runs. Another program that runs for a moment should change nothing.
constexpr double kLook = 0.040, kAttemptLook = 0.008;
constexpr double kTolerated = 0.25;  // threads that wait, on average
// From a failure to the next attempt, twice as long after each failure.
constexpr double kShortest = 0.2, kLongest = 4;
// After that much time without a failure it is short again, and one bad look may be chance.
constexpr double kQuiet = 1;

}  // namespace

FairShare::FairShare(int most)
    : most_(most), now_(most), patience_(kShortest / 2), since_change_(kQuiet) {}

double FairShare::next_look() const { return since_change_ == 0 ? kAttemptLook : kLook; }

void FairShare::note(double seconds, double delayed) {
  since_change_ += seconds;
  const double lost = delayed / seconds;
  const bool is_bad = now_ > 1 && lost > kTolerated;
  const bool is_first = !std::exchange(was_bad_, is_bad);
  if (is_bad && is_first && since_change_ > kQuiet) return;
  if (is_bad) return reduce(lost);
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

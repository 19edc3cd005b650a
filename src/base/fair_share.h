// How many threads of a pool find a CPU, judged by how long they waited for one.
#pragma once

#include <algorithm>
#include <cmath>

namespace dsmoe {

// On a machine that others use too, a thread that waits for a CPU holds up all others at the end
// of every op. Fewer threads are faster there. Numbers in, a number out: the pool measures.
class FairShare {
 public:
  // What counts as a look: runs of that many seconds together.
  static constexpr double kLook = 0.010;

  explicit FairShare(int most) : most_(most), now_(most) {}

  int threads() const { return now_; }

  // After runs of `seconds` in which the threads waited `delayed` seconds for a CPU, all together.
  void note(double seconds, double delayed) {
    since_change_ += seconds;
    const double lost = delayed / seconds;  // in threads
    if (now_ > 1 && lost > kTolerated) return reduce(lost);
    if (now_ == most_) {
      if (since_change_ > kQuiet) patience_ = kShortest / 2;
    } else if (since_change_ > (step_ > 1 ? kLook : patience_)) {
      now_ = std::min(most_, now_ + step_);
      step_ *= 2;
      since_change_ = 0;
    }
  }

 private:
  static constexpr double kTolerated = 0.25;
  // From the first attempt with more threads to the next, doubled each time that it fails.
  static constexpr double kShortest = 0.1, kLongest = 2;
  static constexpr double kQuiet = 1;

  void reduce(double lost) {
    now_ = std::max(1, now_ - std::max(1, static_cast<int>(std::lround(lost))));
    patience_ = std::min(kLongest, 2 * patience_);
    step_ = 1;
    since_change_ = 0;
  }

  int most_, now_;
  int step_ = 1;  // how many more the next attempt takes
  double patience_ = kShortest / 2;
  double since_change_ = 0;
};

}  // namespace dsmoe

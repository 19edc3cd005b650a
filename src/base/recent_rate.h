// How fast something grows by the wall clock: over the last half minute.
#pragma once

#include <deque>

namespace dsmoe {

// Knows no clock: times are given to it, in seconds, ascending.
class RecentRate {
 public:
  static constexpr double kSeconds = 30;

  RecentRate(double now, double amount) { samples_.push_back({now, amount}); }

  // `amount` is all there is by now, not what came since.
  void add(double now, double amount) {
    // Some hundred samples are enough; the newest one always counts.
    if (samples_.size() > 1 && now - samples_[samples_.size() - 2].time < kSeconds / 256) {
      samples_.pop_back();
    }
    samples_.push_back({now, amount});
    // One sample stays that is older than the window: it spans all of it.
    while (samples_.size() > 2 && now - samples_[1].time >= kSeconds) samples_.pop_front();
  }

  // Per second; 0 where no time has passed.
  double rate() const {
    const double seconds = samples_.back().time - samples_.front().time;
    return seconds > 0 ? (samples_.back().amount - samples_.front().amount) / seconds : 0;
  }

 private:
  struct Sample {
    double time, amount;
  };
  std::deque<Sample> samples_;
};

}  // namespace dsmoe

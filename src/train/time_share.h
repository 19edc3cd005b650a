// Work beside training, such as saving, held to a share of the time.
#pragma once

namespace dsmoe::train {

// Counts seconds given to it; knows no clock.
class TimeShare {
 public:
  // 0: no limit.
  explicit TimeShare(double share) : share_(share) {}

  // Whether work that takes as long as the last did would keep to the share of `elapsed`. The first
  // one is always in time.
  bool allows(double elapsed) const {
    return share_ <= 0 || spent_ == 0 || spent_ + last_ <= share_ * elapsed;
  }
  void add(double seconds) {
    spent_ += seconds;
    last_ = seconds;
  }

 private:
  double share_, spent_ = 0, last_ = 0;
};

}  // namespace dsmoe::train

// Losses of steps as a curve of bounded length.
#include "serve/training_progress.h"

namespace dsmoe::serve {

void LossCurve::add(int64_t step, double loss) {
  sum_ += loss;
  if (++waiting_ < stride_) return;
  points_.push_back({.step = step, .loss = sum_ / static_cast<double>(waiting_)});
  waiting_ = 0;
  sum_ = 0;
  if (points_.size() < kMaxPoints) return;
  for (std::size_t i = 0; i < kMaxPoints / 2; ++i) {
    const Point &first = points_[2 * i], &second = points_[2 * i + 1];
    points_[i] = {.step = second.step, .loss = (first.loss + second.loss) / 2};
  }
  points_.resize(kMaxPoints / 2);
  stride_ *= 2;
}

}  // namespace dsmoe::serve

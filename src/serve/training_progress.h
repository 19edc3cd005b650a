// How far the training is that a server waits for, and its loss so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsmoe::serve {

struct TrainingProgress {
  int64_t step = 0, total = 0;
  double loss = 0;
  double seconds_left = 0;  // of the steps
};

// A loss per step becomes at most kMaxPoints points, however long the training is: each is the mean
// of the same number of steps, and that number doubles when the points become too many.
class LossCurve {
 public:
  static constexpr std::size_t kMaxPoints = 128;

  struct Point {
    int64_t step = 0;  // the last one in the mean
    double loss = 0;
  };

  void add(int64_t step, double loss);
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
  int64_t stride_ = 1;  // steps per point
  int64_t waiting_ = 0;
  double sum_ = 0;  // of those that wait
};

}  // namespace dsmoe::serve

// The curve of a training stays short and keeps the mean of all losses.
#include "serve/training_progress.h"

#include <gtest/gtest.h>

namespace dsmoe::serve {
namespace {

TEST(LossCurve, IsTheLossesWhileTheyAreFew) {
  LossCurve curve;
  for (int64_t step = 11; step <= 14; ++step) curve.add(step, 1.0 / static_cast<double>(step));
  ASSERT_EQ(curve.points().size(), 4u);
  EXPECT_EQ(curve.points().front().step, 11);
  EXPECT_EQ(curve.points().back().step, 14);
  EXPECT_DOUBLE_EQ(curve.points()[2].loss, 1.0 / 13);
}

TEST(LossCurve, StaysShortAndKeepsTheMean) {
  LossCurve curve;
  double sum = 0;
  constexpr int64_t kSteps = 1 << 14;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double loss = static_cast<double>(step % 7);
    sum += loss;
    curve.add(step, loss);
    ASSERT_LT(curve.points().size(), LossCurve::kMaxPoints);
  }
  ASSERT_GE(curve.points().size(), LossCurve::kMaxPoints / 2);
  EXPECT_EQ(curve.points().back().step, kSteps);
  double of_points = 0;
  int64_t before = 0;
  const int64_t each = kSteps / static_cast<int64_t>(curve.points().size());
  for (const LossCurve::Point& point : curve.points()) {
    EXPECT_EQ(point.step - before, each);
    before = point.step;
    of_points += point.loss * static_cast<double>(each);
  }
  EXPECT_NEAR(of_points, sum, 1e-6 * sum);
}

}  // namespace
}  // namespace dsmoe::serve

// Differences of fourth order: the error of truncation, h^4, and that of rounding, 1e-16 / h, both
// stay far below 1e-6 for h = 1e-3.
#include "gradients/gradient_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "kernels/pack.h"

namespace dsmoe::testing {
namespace {

constexpr double kStep = 1e-3;
constexpr double kTolerance = 1e-6;
constexpr double kFormerContent = 0.5;  // of gradient buffers

// Places to look at: evenly spread, and the largest gradient.
std::vector<int64_t> places_of(std::span<const double> gradient, int64_t max_elements) {
  const auto size = static_cast<int64_t>(gradient.size());
  const int64_t step = std::max<int64_t>(1, (size + max_elements - 1) / max_elements);
  std::vector<int64_t> places;
  for (int64_t i = (step - 1) / 2; i < size; i += step) places.push_back(i);
  const auto largest = std::max_element(gradient.begin(), gradient.end(), [](double a, double b) {
    return std::abs(a) < std::abs(b);
  });
  places.push_back(largest - gradient.begin());
  return places;
}

// The gradients an input's buffer holds beyond what it held before.
std::vector<double> claimed(const CheckedInput& input) {
  std::vector<double> values(input.gradient.as<double>(),
                             input.gradient.as<double>() + input.gradient.num_elements());
  if (input.law == Law::accumulated) {
    for (double& value : values) value -= kFormerContent;
  }
  return values;
}

double difference(GradientCheck& check, double& value, const std::vector<int64_t>& choice,
                  bool& choice_changed) {
  const double middle = value;
  const auto at = [&](double offset) {
    value = middle + offset * kStep;
    const double loss = check.loss();
    choice_changed = choice_changed || check.choice() != choice;
    return loss;
  };
  const double near = at(1) - at(-1), far = at(2) - at(-2);
  value = middle;
  return (8 * near - far) / (12 * kStep);
}

}  // namespace

TensorView GradientCheck::random(const Shape& shape, const Fill& fill) {
  const TensorView view = empty(shape);
  const Rng rng{.seed = seed_, .purpose = RngPurpose::test};
  std::vector<float> normal(static_cast<std::size_t>(view.num_elements()));
  rng.fill_normal(next_, normal);
  next_ += normal.size();
  for (std::size_t i = 0; i < normal.size(); ++i)
    view.as<double>()[i] = fill.mean + fill.scale * static_cast<double>(normal[i]);
  return view;
}

TensorView GradientCheck::ints(const std::vector<int32_t>& values, const Shape& shape) {
  const TensorView view = arena_.tensor("check", DType::I32, shape);
  std::copy(values.begin(), values.end(), view.as<int32_t>());
  return view;
}

kernels::WeightStack GradientCheck::stack(int64_t count, int64_t n, int64_t k) {
  kernels::WeightStack stack{
      .dtype = DType::F64, .layout = context_.table->weight_layout, .count = count, .n = n, .k = k};
  stack.data = arena_.bytes("check", stack.num_bytes());
  return stack;
}

void GradientCheck::pack(const TensorView& values, const kernels::WeightStack& target,
                         kernels::PackOrder order) {
  const int rank = values.shape.rank();
  TensorView matrix = values;
  matrix.shape = {values.dim(rank - 2), values.dim(rank - 1)};
  for (int64_t m = 0; m < target.count; ++m) {
    kernels::pack_weight(context_,
                         {.source = matrix, .target = target, .matrix_idx = m, .order = order});
    matrix.data = matrix.as<double>() + matrix.num_elements();
  }
}

CheckedInput GradientCheck::input(const std::string& name, const TensorView& value, Law law) {
  inputs_.push_back({.name = name, .value = value, .gradient = empty(value.shape), .law = law});
  return inputs_.back();
}

double dot(const TensorView& a, const TensorView& b) {
  DSMOE_CHECK(a.num_elements() == b.num_elements(), "{} and {} elements", a.num_elements(),
              b.num_elements());
  double sum = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) sum += a.as<double>()[i] * b.as<double>()[i];
  return sum;
}

Comparison compare_with_differences(GradientCheck& check, Damage damage, int64_t max_elements) {
  Comparison result;
  for (const CheckedInput& input : check.inputs()) {
    std::fill_n(input.gradient.as<double>(), input.gradient.num_elements(), kFormerContent);
  }
  check.loss();
  const std::vector<int64_t> choice = check.choice();
  check.backward();
  for (const CheckedInput& input : check.inputs()) {
    std::vector<double> gradient = claimed(input);
    const std::vector<int64_t> places = places_of(gradient, max_elements);
    if (damage == Damage::one_entry) gradient[static_cast<std::size_t>(places.back())] *= 1.001;
    double error = 0, norm = 0;
    for (const int64_t place : places) {
      const double expected =
          difference(check, input.value.as<double>()[place], choice, result.choice_changed);
      const double actual = gradient[static_cast<std::size_t>(place)];
      error += (actual - expected) * (actual - expected);
      norm += expected * expected;
    }
    // A gradient of nothing is exactly nothing; differences of it are rounding errors.
    const bool right = std::sqrt(error) <= kTolerance * std::sqrt(norm) ||
                       (std::sqrt(error) < 1e-11 && gradient[places.back()] == 0);
    if (right) continue;
    result.wrong.push_back(input.name);
    result.report += fmt::format("{}: error {:.3g} of norm {:.3g} over {} elements\n", input.name,
                                 std::sqrt(error), std::sqrt(norm), places.size());
  }
  check.loss();
  return result;
}

}  // namespace dsmoe::testing

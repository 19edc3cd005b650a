// GradientCheck: a loss in double and the gradients that backward passes claim for it, compared
// with differences of the loss.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/table.h"
#include "tensor/arena.h"

namespace dsmoe::testing {

using kernels::Context;
using kernels::DType;
using kernels::Shape;
using kernels::TensorView;

// The gradient law (src/kernels/README.md): assigned, or added to what the buffer holds.
enum class Law { assigned, accumulated };

struct CheckedInput {
  std::string name;
  TensorView value;     // F64: the loss is a function of these
  TensorView gradient;  // F64, same number of elements
  Law law = Law::assigned;
};

class GradientCheck {
 public:
  GradientCheck() : pool_(1), context_{.table = &kernels::ref_table(), .pool = &pool_} {}
  virtual ~GradientCheck() = default;

  // By the forward pass alone, at the inputs' present values.
  virtual double loss() = 0;
  // Writes all gradients at the inputs' present values.
  virtual void backward() = 0;
  // What the routers chose in the last loss(): gradients hold as long as it stays.
  virtual std::vector<int64_t> choice() const { return {}; }

  const std::vector<CheckedInput>& inputs() const { return inputs_; }

 protected:
  struct Fill {
    double scale = 1;
    double mean = 0;
  };
  // Random numbers, others at each call.
  TensorView random(const Shape& shape, const Fill& fill);
  TensorView random(const Shape& shape) { return random(shape, {.scale = 1}); }
  TensorView empty(const Shape& shape) { return arena_.tensor("check", DType::F64, shape); }
  TensorView ints(const std::vector<int32_t>& values, const Shape& shape);
  TensorView ints(const std::vector<int32_t>& values) {
    return ints(values, {static_cast<int64_t>(values.size())});
  }
  kernels::WeightStack stack(int64_t count, int64_t n, int64_t k);
  // values: [n, k] or [count, n, k].
  void pack(const TensorView& values, const kernels::WeightStack& target,
            kernels::PackOrder order = kernels::PackOrder::as_stored);
  CheckedInput input(const std::string& name, const TensorView& value, Law law);

  ThreadPool pool_;
  Context context_;
  tensor::Arena arena_{"gradient check"};
  std::vector<CheckedInput> inputs_;
  uint64_t seed_ = 1;

 private:
  uint64_t next_ = 0;
};

double dot(const TensorView& a, const TensorView& b);

// The control multiplies the largest entry of every gradient by 1.001.
enum class Damage { none, one_entry };

struct Comparison {
  std::vector<std::string> wrong;  // inputs whose gradient is off by more than 1e-6 of its norm
  std::string report;              // one line per wrong input
  bool choice_changed = false;     // then nothing is said about gradients: take another seed
};
// At most `max_elements` of each input are looked at, the largest gradient among them.
Comparison compare_with_differences(GradientCheck& check, Damage damage, int64_t max_elements);

}  // namespace dsmoe::testing

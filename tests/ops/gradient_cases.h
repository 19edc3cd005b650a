// GradientCase: a case of a backward op, whose outputs hold something before it runs.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#include "ops/op_case.h"

namespace dsmoe::ops {

// Compared with ref; what ref<double> computes is compared with differences in tests/gradients.
class GradientCase : public OpCase {
 public:
  using OpCase::OpCase;
  void run(const Context& context) final {
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      std::memcpy(outputs_[i].view.data, before_[i].data, before_[i].num_bytes());
    call(context);
  }
  int64_t num_rows() const override { return 0; }
  bool has_bound(std::size_t) const override { return false; }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase&) const override { return {}; }

 protected:
  virtual void call(const Context& context) = 0;

  // An output that starts as random numbers: the op adds to them, or must overwrite them.
  TensorView changed(const std::string& name, DType dtype, const Shape& shape, uint32_t stream,
                     double mean = 0) {
    before_.push_back(random(dtype, shape, {.stream = stream, .mean = mean}));
    return output(name, dtype, shape);
  }
  TensorView operand(const Shape& shape, uint32_t stream, double scale = 1) {
    return random(variant_.operand, shape, {.stream = stream, .scale = scale});
  }
  TensorView number(const Shape& shape, uint32_t stream, double scale = 1) {
    return random(scalar(), shape, {.stream = stream, .scale = scale, .precision = DType::F32});
  }
  TensorView int_matrix(const std::vector<int32_t>& values, const Shape& shape) {
    TensorView view = ints(values);
    view.shape = shape;
    return view;
  }

 private:
  std::vector<TensorView> before_;
};

template <class Case, class... Args>
OpEntry gradient_entry(const char* op, const char* name, Args... args) {
  return {op, name,
          [=](const Variant& variant) { return std::make_unique<Case>(variant, args...); }};
}

}  // namespace dsmoe::ops

// Checked shape arithmetic and the names of types.
#include "tensor/tensor.h"

#include <cmath>
#include <limits>

namespace dsmoe::tensor {

std::string_view name_of(DType type) {
  switch (type) {
    case DType::F64:
      return "F64";
    case DType::F32:
      return "F32";
    case DType::BF16:
      return "BF16";
    case DType::F16:
      return "F16";
    case DType::I32:
      return "I32";
    case DType::I64:
      return "I64";
    case DType::U8:
      return "U8";
    case DType::I8:
      return "I8";
  }
  return "?";
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const int exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(exponent + 112) << 23) |
                              (mantissa << 13));
}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  DSMOE_CHECK(rank_ <= kMaxRank, "{} dimensions, at most {} are supported", rank_, kMaxRank);
  int64_t count = 1;
  for (int axis = 0; axis < rank_; ++axis) {
    DSMOE_CHECK(dims[axis] >= 0, "dimension {} is negative: {}", axis, dims[axis]);
    dims_[axis] = dims[axis];
    // 2^59 elements of 8 bytes still fit in an int64_t.
    DSMOE_CHECK(dims[axis] == 0 || count <= (int64_t{1} << 59) / dims[axis],
                "a tensor of that shape has too many elements");
    count *= dims[axis];
  }
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int64_t dim : dims()) count *= dim;
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

TensorView TensorView::rows(int64_t begin, int64_t end) const {
  DSMOE_CHECK(shape.rank() >= 1 && 0 <= begin && begin <= end && end <= shape[0],
              "rows [{}, {}) of a tensor {}", begin, end, to_string(shape));
  std::array<int64_t, Shape::kMaxRank> dims{};
  int64_t row_elements = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    dims[axis] = axis == 0 ? end - begin : shape[axis];
    if (axis > 0) row_elements *= shape[axis];
  }
  TensorView view = *this;
  view.shape = Shape(std::span<const int64_t>(dims.data(), shape.rank()));
  view.data =
      static_cast<char*>(data) + static_cast<std::size_t>(begin * row_elements) * size_of(dtype);
  return view;
}

}  // namespace dsmoe::tensor

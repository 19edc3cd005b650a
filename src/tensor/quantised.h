// Quantised weights: integers in groups that share a scale, and by definition the bf16 numbers
// round(scale * integer).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/bf16.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::tensor {

// plain: elements of a floating type. int8, int4: two's complement integers beside BF16 scales.
enum class WeightCoding : uint8_t { plain, int8, int4 };

std::string_view name_of(WeightCoding coding);

constexpr int64_t kGroupSize = 32;  // consecutive k of one row that share a scale

constexpr int64_t num_groups(int64_t k) { return (k + kGroupSize - 1) / kGroupSize; }

// Bytes of k integers of one row as files hold them: int4 low nibble first, an odd last one beside
// zero.
constexpr int64_t coded_row_bytes(WeightCoding coding, int64_t k) {
  return coding == WeightCoding::int8 ? k : (k + 1) / 2;
}

constexpr DType stored_type(WeightCoding coding) {
  return coding == WeightCoding::int8 ? DType::I8 : DType::U8;
}

// The weight. scale * q needs at most 16 significant bits, so the product in fp32 is exact and one
// rounding remains.
constexpr Bf16 dequantise(Bf16 scale, int q) {
  return to_bf16(to_float(to_bf16(to_float(scale))) * static_cast<float>(q));
}

// Integer k of a stored row.
inline int coded_element(WeightCoding coding, const void* row, int64_t k) {
  if (coding == WeightCoding::int8) return static_cast<const int8_t*>(row)[k];
  const int nibble = (static_cast<const uint8_t*>(row)[k / 2] >> (k % 2 * 4)) & 15;
  return nibble < 8 ? nibble : nibble - 16;
}

// Finite, and small enough that every integer times it is finite; for int4 at most five significant
// bits, which makes scale * q a bf16 number without rounding.
bool is_valid_scale(WeightCoding coding, Bf16 scale);
std::string_view scale_rule(WeightCoding coding);  // the same in words

// What files hold of a weight [n, k] named X.weight: X.weight itself, and X.weight_scale.
TensorSpec coded_spec(WeightCoding coding, const std::string& name, int64_t n, int64_t k);
TensorSpec scale_spec(const std::string& name, int64_t n, int64_t k);
inline std::string scale_name(const std::string& name) { return name + "_scale"; }

// Groups of one row, quantised: the scale and the integers of least squared error among the scales
// worth trying. `out` holds coded_row_bytes(coding, k) bytes, `scales` num_groups(k).
void quantise_row(WeightCoding coding, const float* row, int64_t k, void* out, Bf16* scales);

}  // namespace dsmoe::tensor

// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tensor/bf16.h"

namespace dsmoe::tensor {

// F64 exists for the mathematics (gradient checks, bounds), never for speed. F16 exists in files
// only.
enum class DType : uint8_t { F64, F32, BF16, F16, I32, I64, U8, I8 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
      return 2;
    case DType::U8:
    case DType::I8:
      return 1;
  }
  return 0;
}

// The safetensors spelling: "F32", "BF16", ...
std::string_view name_of(DType type);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::U8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::I8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace dsmoe::tensor

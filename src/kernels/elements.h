// One element of any floating type, read from and written to memory of any alignment.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "tensor/bf16.h"
#include "tensor/dtype.h"

namespace dsmoe::kernels {

// Double holds every F32, BF16 and F16 value exactly, so a read and a write round at most once.
inline double read_element(const void* data, tensor::DType dtype, int64_t idx) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, static_cast<const char*>(data) + idx * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    return value;
  };
  switch (dtype) {
    case tensor::DType::F64:
      return load(double{});
    case tensor::DType::F32:
      return load(float{});
    case tensor::DType::BF16:
      return tensor::to_float(load(tensor::Bf16{}));
    case tensor::DType::F16:
      return tensor::half_to_float(load(uint16_t{}));
    default:
      fail(ErrorKind::internal, "{} is not a floating type", tensor::name_of(dtype));
  }
}

inline void write_element(void* data, tensor::DType dtype, int64_t idx, double value) {
  const auto store = [&]<class T>(T element) {
    std::memcpy(static_cast<char*>(data) + idx * static_cast<int64_t>(sizeof(T)), &element,
                sizeof(T));
  };
  switch (dtype) {
    case tensor::DType::F64:
      return store(value);
    case tensor::DType::F32:
      return store(static_cast<float>(value));
    case tensor::DType::BF16:
      return store(tensor::to_bf16(static_cast<float>(value)));
    default:
      fail(ErrorKind::internal, "{} is not a type weights are kept in", tensor::name_of(dtype));
  }
}

}  // namespace dsmoe::kernels

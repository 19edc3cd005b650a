// Shape and TensorView: where numbers lie and how they are laid out. Views never own.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace dsmoe::tensor {

enum class Device : uint8_t { cpu, cuda };

// At most four dimensions, row-major, all non-negative; num_elements() cannot overflow.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t num_elements() const;
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[3, 40]"

// A contiguous row-major block of one element type. An absent tensor has data == nullptr.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::F32;
  Shape shape;
  Device device = Device::cpu;

  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int axis) const { return shape[axis]; }
  int64_t num_elements() const { return shape.num_elements(); }
  std::size_t num_bytes() const {
    return static_cast<std::size_t>(num_elements()) * size_of(dtype);
  }

  // Typed pointer; a wrong type is a bug and throws.
  template <class T>
  T* as() const {
    DSMOE_CHECK(dtype == dtype_of<T>, "the tensor holds {}, the code asked for {}", name_of(dtype),
                name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }

  // Rows [begin, end) of the first dimension.
  TensorView rows(int64_t begin, int64_t end) const;
};

}  // namespace dsmoe::tensor

// The arithmetic all reference kernels share: types, products and row reductions of
// docs/numerics.md, in plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/functions.h"
#include "kernels/rows.h"
#include "tensor/bf16.h"

namespace dsmoe::kernels::ref {

using tensor::Bf16;

// Accumulators and statistics: float for BF16 and float operands, double for double.
template <class Operand>
struct ScalarOf {
  using type = float;
};
template <>
struct ScalarOf<double> {
  using type = double;
};
template <class Operand>
using Scalar = typename ScalarOf<Operand>::type;

inline float widen(Bf16 value) { return tensor::to_float(value); }
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }

template <class Operand>
Operand round_to(Scalar<Operand> value) {
  if constexpr (std::is_same_v<Operand, Bf16>) {
    return tensor::to_bf16(value);
  } else {
    return value;
  }
}

template <class T>
const T* row_of(const Rows& rows, int64_t row) {
  const int32_t* index = rows.indices();
  return rows.x.as<T>() + (index != nullptr ? index[row] : row) * rows.columns();
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float exp(float x) { return exp_f32(x); }
inline double exp(double x) { return std::exp(x); }
inline float log(float x) { return static_cast<float>(log_f64(x)); }
inline double log(double x) { return std::log(x); }

template <class S>
S sigmoid(S x) {
  return S(1) / (S(1) + exp(-x));
}

template <class S>
S silu(S x) {
  return x / (S(1) + exp(-x));
}

// acc + sum_k a(k) b(k) for k in [0, size), in the order the operand type prescribes.
template <class Operand, class A, class B>
Scalar<Operand> product(Scalar<Operand> acc, int64_t size, A&& a, B&& b) {
  using S = Scalar<Operand>;
  if constexpr (std::is_same_v<Operand, Bf16>) {
    for (int64_t block = 0; block < size; block += 32) {
      S even = 0;
      S odd = 0;
      for (int64_t k = block; k < block + 32; ++k) {
        S& chain = k % 2 == 0 ? even : odd;
        const bool inside = k < size;  // the tail is padded with zeros
        chain = fma(inside ? a(k) : S(0), inside ? b(k) : S(0), chain);
      }
      acc = acc + (even + odd);
    }
    return acc;
  } else {
    for (int64_t segment = 0; segment < size; segment += 256) {
      S chain = 0;
      for (int64_t k = segment; k < size && k < segment + 256; ++k) chain = fma(a(k), b(k), chain);
      acc = acc + chain;
    }
    return acc;
  }
}

// Element (n, k) of a matrix of integers.
inline float coded_weight(const void* matrix, const WeightStack& weight, int64_t n, int64_t k) {
  const auto* bytes = static_cast<const char*>(matrix);
  Bf16 scale{};
  std::memcpy(&scale, bytes + scale_offset(weight.coding, weight.k, n, k / tensor::kGroupSize),
              sizeof scale);
  return widen(tensor::dequantise(scale, packed_integer(weight.coding, matrix, weight.k, n, k)));
}

// acc + one row of x times row n of matrix `matrix_idx`: the building block of every projection.
template <class Operand>
Scalar<Operand> dot(const Operand* x, const WeightStack& weight, int64_t matrix_idx, int64_t n,
                    Scalar<Operand> acc = 0) {
  const auto* w = static_cast<const Operand*>(weight.matrix(matrix_idx));
  if constexpr (std::is_same_v<Operand, Bf16>) {
    if (weight.coding != WeightCoding::plain) {
      return product<Operand>(
          acc, weight.k, [&](int64_t k) { return widen(x[k]); },
          [&](int64_t k) { return coded_weight(w, weight, n, k); });
    }
  }
  return product<Operand>(
      acc, weight.k, [&](int64_t k) { return widen(x[k]); },
      [&](int64_t k) { return widen(w[weight.index(n, k)]); });
}

// A x of one row, rounded like every product's input, into the adapter's row `row`; nothing where
// the weight has no adapter.
template <class Operand>
const Operand* inner_row(const Operand* x, const Weight& weight, int64_t matrix_idx, int64_t row) {
  if (!weight.adapter) return nullptr;
  const WeightStack& a = weight.adapter.a;
  Operand* inner = weight.adapter.inner.as<Operand>() + row * a.n;
  for (int64_t r = 0; r < a.n; ++r) inner[r] = round_to<Operand>(dot(x, a, matrix_idx, r));
  return inner;
}

// The same sum with a weight, which goes on over the adapter's rank: `inner` is of inner_row.
template <class Operand>
Scalar<Operand> dot(const Operand* x, const Operand* inner, const Weight& weight,
                    int64_t matrix_idx, int64_t n, Scalar<Operand> acc = 0) {
  acc = dot(x, weight.stack, matrix_idx, n, acc);
  return inner == nullptr ? acc : dot(inner, weight.adapter.b, matrix_idx, n, acc);
}

// 16 lanes, element i in lane i mod 16, joined 8-4-2-1. `step(lane, i)` folds element i into its
// lane.
template <class S, class Step, class Join>
S reduce_row(int64_t size, S start, Step&& step, Join&& join) {
  S lanes[16];
  for (S& lane : lanes) lane = start;
  for (int64_t i = 0; i < size; ++i) lanes[i % 16] = step(lanes[i % 16], i);
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = join(lanes[j], lanes[j + half]);
  }
  return lanes[0];
}

template <class S, class Value>
S row_sum(int64_t size, Value&& value) {
  return reduce_row<S>(
      size, S(0), [&](S lane, int64_t i) { return lane + value(i); },
      [](S a, S b) { return a + b; });
}

template <class S>
S larger(S a, S b) {
  return a > b ? a : b;
}

template <class S, class Value>
S row_max(int64_t size, Value&& value) {
  return reduce_row<S>(
      size, -std::numeric_limits<S>::infinity(),
      [&](S lane, int64_t i) { return larger<S>(value(i), lane); }, larger<S>);
}

// Calls body.operator()<Operand>() with the C++ type of an operand dtype.
template <class Body>
void with_operand(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::BF16:
      return body.template operator()<Bf16>();
    case DType::F32:
      return body.template operator()<float>();
    case DType::F64:
      return body.template operator()<double>();
    default:
      DSMOE_CHECK(false, "{} is not an operand type", tensor::name_of(dtype));
  }
}

}  // namespace dsmoe::kernels::ref

// Weight: what a product multiplies with, and what may go on behind it.
#pragma once

#include "kernels/layout.h"

namespace dsmoe::kernels {

// B A, of low rank, beside a stack of as many matrices [n, k]. In the backward pass of y = W x the
// transposed weight has the transposed adapter: its A is B transposed, its B is A transposed.
struct Adapter {
  WeightStack a;     // count x [rank, k]
  WeightStack b;     // count x [n, rank]
  TensorView inner;  // [rows, rank], operand type, written: A x, rounded

  explicit operator bool() const { return static_cast<bool>(a); }
};

// y = W x; with an adapter the same sum goes on with B (A x).
struct Weight {
  WeightStack stack;  // W
  Adapter adapter;    // absent: W alone

  Weight() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a stack is a weight without an adapter
  Weight(const WeightStack& w) : stack(w) {}
  Weight(const WeightStack& w, const Adapter& beside) : stack(w), adapter(beside) {}

  explicit operator bool() const { return static_cast<bool>(stack); }
};

}  // namespace dsmoe::kernels

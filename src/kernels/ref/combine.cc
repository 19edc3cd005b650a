// The binary tree over expert indices, written as the recursion that defines it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

template <class S>
struct Term {
  int32_t expert;
  S value;
};

// Sum over the terms whose expert lies in [begin, begin + size); size is a power of two.
template <class S>
std::optional<S> tree_sum(const std::vector<Term<S>>& terms, int64_t begin, int64_t size) {
  if (size == 1) {
    for (const Term<S>& term : terms) {
      if (term.expert == begin) return term.value;
    }
    return std::nullopt;
  }
  const std::optional<S> left = tree_sum(terms, begin, size / 2);
  const std::optional<S> right = tree_sum(terms, begin + size / 2, size / 2);
  if (left && right) return *left + *right;
  return left ? left : right;
}

}  // namespace

// The dispatcher has copied `base` to `residual`, and gives this table whole columns only.
void combine_forward(const Context&, const CombineForward& args) {
  const TensorView& sample = args.routed ? args.routed : args.shared;
  with_operand(sample.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t hidden = args.residual.dim(1);
    const int64_t top_k = args.routed ? args.index.dim(1) : 0;
    S* residual = args.residual.as<S>();
    std::vector<Term<S>> terms;
    for (int64_t t = 0; t < args.residual.dim(0); ++t) {
      for (int64_t i = 0; i < hidden; ++i) {
        terms.clear();
        int32_t last_expert = 0;
        for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
          const int32_t row = args.row_of_slot.as<int32_t>()[slot];
          if (row < 0) continue;
          const int32_t expert = args.index.as<int32_t>()[slot];
          const S y = widen(args.routed.as<Operand>()[row * hidden + i]);
          terms.push_back({expert, args.gate ? args.gate.as<S>()[slot] * y : y});
          last_expert = std::max(last_expert, expert);
        }
        const int64_t leaves = std::bit_ceil(static_cast<uint64_t>(last_expert) + 1);
        std::optional<S> sum = tree_sum(terms, 0, leaves);
        if (args.shared) {
          S shared = widen(args.shared.as<Operand>()[t * hidden + i]);
          if (args.shared_gate) shared = args.shared_gate.as<S>()[t] * shared;
          sum = sum ? *sum + shared : shared;
        }
        S& h = residual[t * hidden + i];
        if (args.store == Store::assign) {
          h = sum.value_or(S(0));
        } else if (sum) {
          h = h + *sum;
        }
      }
    }
  });
}

void dispatch_gates(const Context&, const DispatchGates& args) {
  const std::size_t element = tensor::size_of(args.gate.dtype);
  for (int64_t slot = 0; slot < args.gate.num_elements(); ++slot) {
    const int32_t row = args.row_of_slot.as<int32_t>()[slot];
    if (row < 0) continue;
    std::memcpy(static_cast<char*>(args.gate_of_row.data) + static_cast<std::size_t>(row) * element,
                static_cast<const char*>(args.gate.data) + static_cast<std::size_t>(slot) * element,
                element);
  }
}

}  // namespace dsmoe::kernels::ref

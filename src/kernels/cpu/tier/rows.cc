// What happens to one row at a time: norms, softmax, rotation, combine, conversions.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/sixteen.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;

template <class Out>
void normalise_row(const cpu::RmsNormRows& args, int64_t row) {
  const float* x = args.x + row * args.size;
  Out* out = static_cast<Out*>(args.out) + row * args.size;
  const float sum = join_sum(fold(
      x, args.size, zero(),
      [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) { return fma(v, v, lanes); }));
  const F32x16 mean = div(broadcast(sum), broadcast(static_cast<float>(args.size)));
  const F32x16 inverse = div(broadcast(1.0f), sqrt(add(mean, broadcast(args.eps))));
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 scaled = mul(load_up_to(x + i, count), inverse);
        store_up_to(out + i, mul(scaled, load_up_to(args.weight + i, count)), count);
      });
}

template <class In>
void combine_row(const cpu::CombineRow& args) {
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        F32x16 sums[cpu::kMaxPartialSums];
        int top = 0;
        for (int term = 0; term < args.terms; ++term) {
          const F32x16 y = load_up_to(static_cast<const In*>(args.routed[term]) + i, count);
          sums[top++] = args.gate != nullptr ? mul(broadcast(args.gate[term]), y) : y;
          for (int join = 0; join < args.joins[term]; ++join, --top)
            sums[top - 2] = add(sums[top - 2], sums[top - 1]);
        }
        if (args.shared != nullptr) {
          F32x16 shared = load_up_to(static_cast<const In*>(args.shared) + i, count);
          if (args.shared_gate != nullptr) shared = mul(broadcast(*args.shared_gate), shared);
          sums[0] = top > 0 ? add(sums[0], shared) : shared;
        } else if (top == 0) {
          if (!args.add_to_residual) store_up_to(args.residual + i, zero(), count);
          return;
        }
        if (args.add_to_residual) sums[0] = add(load_up_to(args.residual + i, count), sums[0]);
        store_up_to(args.residual + i, sums[0], count);
      });
}

}  // namespace

void rms_norm(const cpu::RmsNormRows& args) {
  for (int64_t row = args.row_begin; row < args.row_end; ++row) {
    if (args.type == Element::bf16) {
      normalise_row<uint16_t>(args, row);
    } else {
      normalise_row<float>(args, row);
    }
  }
}

void rotate(const cpu::RotateHead& args) {
  for_each_sixteen(
      args.half, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 a = load_up_to(args.head + i, count);
        const F32x16 b = load_up_to(args.head + args.half + i, count);
        const F32x16 c = load_up_to(args.cos + i, count);
        const F32x16 s = load_up_to(args.sin + i, count);
        store_up_to(args.out + i, fma(a, c, negate(mul(b, s))), count);
        store_up_to(args.out + args.half + i, fma(b, c, mul(a, s)), count);
      });
}

void combine(const cpu::CombineRow& args) {
  if (args.type == Element::bf16) {
    combine_row<uint16_t>(args);
  } else {
    combine_row<float>(args);
  }
}

void widen(const void* bf16, float* out, int64_t size) {
  const auto* x = static_cast<const uint16_t*>(bf16);
  for_each_sixteen(
      size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        store_up_to(out + i, load_up_to(x + i, count), count);
      });
}

void round(const float* x, void* bf16, int64_t size) {
  auto* out = static_cast<uint16_t*>(bf16);
  for_each_sixteen(
      size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        store_up_to(out + i, load_up_to(x + i, count), count);
      });
}

cpu::MaxAndSum max_and_sum(const float* s, int64_t size) {
  const F32x16 lowest = broadcast(-__builtin_inff());
  const float largest = join_max(fold(
      s, size, lowest,
      [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) { return max(v, lanes); }));
  const float sum = join_sum(fold(
      s, size, zero(), [&](F32x16 v, F32x16 lanes) __attribute__((always_inline)) {
        return add(lanes, exp(sub(v, broadcast(largest))));
      }));
  return {largest, sum};
}

// Piece by piece: the one that holds the maximum is looked through again.
int64_t index_of_max(const float* s, int64_t size) {
  constexpr int64_t kPiece = 1024;
  float largest = -__builtin_inff();
  int64_t first = 0;
  F32x16 not_finite = zero();
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const int64_t count = size - begin < kPiece ? size - begin : kPiece;
    const float here = join_max(fold(
        s + begin, count, broadcast(largest),
        [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) { return max(v, lanes); }));
    not_finite = fold(
        s + begin, count, not_finite, [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) {
          return add(lanes, sub(v, v));
        });
    if (here > largest) first = begin;
    largest = here;
  }
  if (join_sum(not_finite) != 0) return -1;
  while (s[first] != largest) ++first;
  return first;
}

void softmax(float* s, int64_t size) {
  const cpu::MaxAndSum row = max_and_sum(s, size);
  for_each_sixteen(
      size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 e = exp(sub(load_up_to(s + i, count), broadcast(row.max)));
        store_up_to(s + i, div(e, broadcast(row.sum)), count);
      });
}

void sigmoid(float* s, int64_t size) {
  for_each_sixteen(
      size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        store_up_to(s + i, sigmoid(load_up_to(s + i, count)), count);
      });
}

}  // namespace dsmoe::kernels::DSMOE_TIER

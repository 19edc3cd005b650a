// Scores of one query on the way back: softmax statistics as in the forward pass, then p and ds.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/sixteen.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;
using cpu::kAttentionKeys;
using cpu::kSpanBlocks;
using cpu::MaxAndSum;

DSMOE_HD float first(F32x16 a) {
  float value;
  store_first(&value, a, 1);
  return value;
}
DSMOE_HD float exp_of(float x) { return first(exp(broadcast(x))); }
DSMOE_HD float fma_of(float a, float b, float c) {
  return first(fma(broadcast(a), broadcast(b), broadcast(c)));
}

// One more block of scores joins the span.
void visit_block(const float* s, int64_t count, MaxAndSum& span) {
  const float block_max = join_max(fold(
      s, count, broadcast(-__builtin_inff()),
      [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) { return max(v, lanes); }));
  const float new_max = span.max > block_max ? span.max : block_max;
  const float correction = exp_of(span.max - new_max);
  const float sum = join_sum(fold(
      s, count, zero(), [&](F32x16 v, F32x16 lanes) __attribute__((always_inline)) {
        return add(lanes, exp(sub(v, broadcast(new_max))));
      }));
  span.sum = fma_of(span.sum, correction, sum);
  span.max = new_max;
}

MaxAndSum statistics(const float* s, int64_t keys) {
  constexpr int64_t kSpanKeys = kAttentionKeys * kSpanBlocks;
  MaxAndSum total;
  for (int64_t begin = 0; begin < keys; begin += kSpanKeys) {
    MaxAndSum span{-__builtin_inff(), 0};
    for (int64_t block = begin; block < keys && block < begin + kSpanKeys;
         block += kAttentionKeys) {
      const int64_t left = keys - block;
      visit_block(s + block, left < kAttentionKeys ? left : kAttentionKeys, span);
    }
    if (begin == 0) {
      total = span;
      continue;
    }
    const float max = total.max > span.max ? total.max : span.max;
    total.sum = fma_of(total.sum, exp_of(total.max - max), span.sum * exp_of(span.max - max));
    total.max = max;
  }
  return total;
}

template <class T>
void backward_row(const cpu::AttendBackwardRow& args) {
  const auto* out = static_cast<const T*>(args.out);
  const auto* d_out = static_cast<const T*>(args.d_out);
  const F32x16 scale = broadcast(args.scale);
  F32x16 lanes = zero();
  for_each_sixteen(
      args.width, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 next =
            add(lanes, mul(load_up_to(d_out + i, count), load_up_to(out + i, count)));
        lanes = count == 16 ? next : first_lanes(count, next, lanes);
      });
  const F32x16 d_dot_out = broadcast(join_sum(lanes));
  for (int64_t j = 0; j < args.padded_keys; j += 16)
    store(args.s + j, mul(load(args.s + j), scale));
  const MaxAndSum row = statistics(args.s, args.keys);
  for (int64_t j = 0; j < args.padded_keys; j += 16) {
    F32x16 p = zero();
    F32x16 ds = zero();
    if (j < args.keys) {
      p = div(exp(sub(load(args.s + j), broadcast(row.max))), broadcast(row.sum));
      ds = mul(mul(p, sub(load(args.dp + j), d_dot_out)), scale);
      if (args.keys - j < 16) {
        p = first_lanes(args.keys - j, p, zero());
        ds = first_lanes(args.keys - j, ds, zero());
      }
    }
    store_up_to(static_cast<T*>(args.p) + j, p, 16);
    store_up_to(static_cast<T*>(args.ds) + j, ds, 16);
  }
}

}  // namespace

void attend_backward(const cpu::AttendBackwardRow& args) {
  if (args.type == Element::bf16) {
    backward_row<uint16_t>(args);
  } else {
    backward_row<float>(args);
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

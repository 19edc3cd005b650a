// Inner loops of the backward pass: operands of products over rows, SwiGLU on the way back.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/sixteen.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;

// Columns [column, column + count) of the row that becomes k; zeros where there is none.
template <class Source>
DSMOE_HD F32x16 gathered(const cpu::GatherRows& args, int64_t k, int64_t column, int64_t count) {
  const int64_t row = args.row_of_k[k];
  if (row < 0) return zero();
  return load_up_to(static_cast<const Source*>(args.source) + row * args.stride + column, count);
}

template <class Source>
void gather_into_panels(const cpu::GatherRows& args) {
  const int64_t panel = args.depth * 16;  // elements
  for (int64_t k = 0; k < args.depth; k += 2) {
    int64_t place = k * 16;
    for_each_sixteen(
        args.column_end - args.column_begin, [&](int64_t i,
                                                 int64_t count) __attribute__((always_inline)) {
          const F32x16 even = gathered<Source>(args, k, args.column_begin + i, count);
          const F32x16 odd = gathered<Source>(args, k + 1, args.column_begin + i, count);
          if (args.target_type == Element::bf16) {
            store_bf16_pairs(static_cast<uint16_t*>(args.out) + place, even, odd);
          } else {
            store(static_cast<float*>(args.out) + place, even);
            store(static_cast<float*>(args.out) + place + 16, odd);
          }
          place += panel;
        });
  }
}

// Sixteen words of sixteen columns change places; a word is two bf16 of neighbouring k, or one
// float.
template <class Source>
void gather_by_column(const cpu::GatherRows& args) {
  constexpr bool kPairs = sizeof(Source) == 2;
  constexpr int64_t kDepth = kPairs ? 32 : 16;
  auto* out = static_cast<Source*>(args.out);
  alignas(64) float words[16][16];
  for_each_sixteen(args.column_end - args.column_begin, [&](int64_t i, int64_t count) {
    const int64_t column = args.column_begin + i;
    for (int64_t k = 0; k < args.depth; k += kDepth) {
      for (int64_t j = 0; j < 16; ++j) {
        if constexpr (kPairs) {
          store_bf16_pairs(reinterpret_cast<uint16_t*>(words[j]),
                           gathered<Source>(args, k + 2 * j, column, count),
                           gathered<Source>(args, k + 2 * j + 1, column, count));
        } else {
          store(words[j], gathered<Source>(args, k + j, column, count));
        }
      }
      for (int64_t c = 0; c < count; ++c) {
        store(reinterpret_cast<float*>(out + (i + c) * args.depth + k),
              gather_words(&words[0][c], sizeof words[0]));
      }
    }
  });
}

template <class T>
void swiglu_backward_row(const cpu::SwigluBackwardRow& args) {
  const auto* activation = static_cast<const T*>(args.activation);
  const bool gated = args.gate != nullptr;
  const F32x16 gate = broadcast(gated ? *args.gate : 1.0f);
  const F32x16 one = broadcast(1.0f);
  F32x16 lanes = zero();
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 a = load_up_to(args.a + i, count);
        if (gated) {
          const F32x16 h = load_up_to(activation + i, count);
          const F32x16 next = add(lanes, mul(a, h));
          lanes = count == 16 ? next : first_lanes(count, next, lanes);
          store_up_to(static_cast<T*>(args.scaled_activation) + i, mul(gate, h), count);
        }
        const F32x16 g = load_up_to(static_cast<const T*>(args.gate_product) + i, count);
        const F32x16 u = load_up_to(static_cast<const T*>(args.up_product) + i, count);
        const F32x16 d_activation = mul(gate, a);
        const F32x16 s = sigmoid(g);
        const F32x16 slope = mul(s, fma(g, sub(one, s), one));
        store_up_to(static_cast<T*>(args.d_up_product) + i, mul(d_activation, silu(g)), count);
        store_up_to(static_cast<T*>(args.d_gate_product) + i, mul(mul(d_activation, u), slope),
                    count);
      });
  if (gated) *args.d_gate = join_sum(lanes);
}

}  // namespace

void gather_panels(const cpu::GatherRows& args) {
  if (args.source_type == Element::bf16) {
    gather_into_panels<uint16_t>(args);
  } else {
    gather_into_panels<float>(args);
  }
}

void gather_transposed(const cpu::GatherRows& args) {
  if (args.source_type == Element::bf16) {
    gather_by_column<uint16_t>(args);
  } else {
    gather_by_column<float>(args);
  }
}

void swiglu_backward(const cpu::SwigluBackwardRow& args) {
  if (args.type == Element::bf16) {
    swiglu_backward_row<uint16_t>(args);
  } else {
    swiglu_backward_row<float>(args);
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

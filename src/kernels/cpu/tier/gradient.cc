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

// The same of two rows of bf16 as words: k low, k + 1 high.
DSMOE_HD F32x16 gathered_pairs(const cpu::GatherRows& args, int64_t k, int64_t column,
                               int64_t count) {
  uint16_t padded[2][16] = {};
  const uint16_t* from[2];
  for (int i = 0; i < 2; ++i) {
    from[i] = padded[i];
    const int64_t row = args.row_of_k[k + i];
    if (row < 0) continue;
    const auto* source = static_cast<const uint16_t*>(args.source) + row * args.stride + column;
    if (count == 16) {
      from[i] = source;
    } else {
      std::memcpy(padded[i], source, static_cast<size_t>(count) * 2);
    }
  }
  return join_bf16(from[0], from[1]);
}

template <class Source>
void gather_into_panels(const cpu::GatherRows& args) {
  const int64_t panel = args.depth * 16;  // elements
  const bool bf16 = args.target_type == Element::bf16;
  for (int64_t k = 0; k < args.depth; k += 2) {
    int64_t place = k * 16;
    for_each_sixteen(
        args.column_end - args.column_begin, [&](int64_t i,
                                                 int64_t count) __attribute__((always_inline)) {
          const int64_t column = args.column_begin + i;
          if (sizeof(Source) == 2 && bf16) {
            store(reinterpret_cast<float*>(static_cast<uint16_t*>(args.out) + place),
                  gathered_pairs(args, k, column, count));
          } else {
            const F32x16 even = gathered<Source>(args, k, column, count);
            const F32x16 odd = gathered<Source>(args, k + 1, column, count);
            if (bf16) {
              store_bf16_pairs(static_cast<uint16_t*>(args.out) + place, even, odd);
            } else {
              store(static_cast<float*>(args.out) + place, even);
              store(static_cast<float*>(args.out) + place + 16, odd);
            }
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
  for_each_sixteen(args.column_end - args.column_begin, [&](int64_t i, int64_t count) {
    const int64_t column = args.column_begin + i;
    for (int64_t k = 0; k < args.depth; k += kDepth) {
      F32x16 words[16];
      for (int64_t j = 0; j < 16; ++j) {
        words[j] = kPairs ? gathered_pairs(args, k + 2 * j, column, count)
                          : gathered<Source>(args, k + j, column, count);
      }
      transpose_words(words);
      Source* first = out + i * args.depth + (args.tiles ? k * 16 : k);
      const int64_t row = args.tiles ? kDepth : args.depth;
      for (int64_t c = 0; c < count; ++c)
        store(reinterpret_cast<float*>(first + c * row), words[c]);
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

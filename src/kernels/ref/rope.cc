// Rotation of q and k by their positions; k and v go to their page.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// Where a number of a head turns: its pair (a, b), and which of the two it is.
struct Turn {
  bool turns = false;
  int64_t pair = 0;
  int64_t a = 0, b = 0;
  bool is_first = false;
};

Turn turn_of(const Rotation& rotation, int64_t half, int64_t d) {
  const int64_t i = d - rotation.begin;
  if (i < 0 || i >= 2 * half) return {};
  const bool by_halves = rotation.pairs == RotaryPairs::halves;
  const int64_t pair = by_halves ? i % half : i / 2;
  const int64_t a = rotation.begin + (by_halves ? pair : 2 * pair);
  const int64_t b = a + (by_halves ? half : 1);
  return {.turns = true, .pair = pair, .a = a, .b = b, .is_first = d == a};
}

}  // namespace

void rope_forward(const Context&, const RopeForward& args) {
  with_operand(args.q.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const KvShape& kv = args.kv.shape;
    const int64_t heads = args.q.dim(1);
    const int64_t half = args.cos.dim(1);
    auto* keys = static_cast<Operand*>(args.kv.keys);
    auto* values = static_cast<Operand*>(args.kv.values);
    for (int64_t t = 0; t < args.q.dim(0); ++t) {
      const S* row = args.qkv.as<S>() + t * args.qkv.dim(1);
      const float* cos = args.cos.as<float>() + args.position.as<int32_t>()[t] * half;
      const float* sin = args.sin.as<float>() + args.position.as<int32_t>()[t] * half;
      const auto rotated = [&](const S* head, int64_t d) {
        const Turn turn = turn_of(args.rotation, half, d);
        if (!turn.turns) return round_to<Operand>(head[d]);
        const S a = head[turn.a];
        const S b = head[turn.b];
        const S c = cos[turn.pair];
        const S s = sin[turn.pair];
        return round_to<Operand>(turn.is_first ? fma(a, c, -(b * s)) : fma(b, c, a * s));
      };
      for (int64_t h = 0; h < heads; ++h) {
        Operand* q = args.q.as<Operand>() + (t * heads + h) * kv.key_width;
        for (int64_t d = 0; d < kv.key_width; ++d) q[d] = rotated(row + h * kv.key_width, d);
      }
      const int32_t slot = args.kv_slot.as<int32_t>()[t];
      const int64_t page = slot / kKeyBlock;
      const int64_t place = slot % kKeyBlock;
      for (int64_t h = 0; h < kv.heads; ++h) {
        const S* key = row + (heads + h) * kv.key_width;
        const S* value = row + (heads + kv.heads) * kv.key_width + h * kv.value_width;
        for (int64_t d = 0; d < kv.key_width; ++d) {
          const Operand number = rotated(key, d);
          keys[kv.key_offset(page, h) + kv.key_index(place, d)] = number;
          if (kv.values == KvValues::prefix_of_key && d < kv.value_width)
            values[kv.value_offset(page, h) + kv.value_index(place, d)] = number;
        }
        if (kv.values == KvValues::prefix_of_key) continue;
        for (int64_t d = 0; d < kv.value_width; ++d) {
          values[kv.value_offset(page, h) + kv.value_index(place, d)] = round_to<Operand>(value[d]);
        }
      }
    }
  });
}

void rope_backward(const Context&, const RopeBackward& args) {
  with_operand(args.out.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t rotated = args.num_heads + args.num_kv_heads;
    const int64_t half = args.cos.dim(1);
    for (int64_t t = 0; t < args.d_qkv.dim(0); ++t) {
      const float* cos = args.cos.as<float>() + args.position.as<int32_t>()[t] * half;
      const float* sin = args.sin.as<float>() + args.position.as<int32_t>()[t] * half;
      const S* d_row = args.d_qkv.as<S>() + t * args.d_qkv.dim(1);
      Operand* out_row = args.out.as<Operand>() + t * args.d_qkv.dim(1);
      for (int64_t h = 0; h < rotated; ++h) {
        const S* d_head = d_row + h * args.key_width;
        Operand* out = out_row + h * args.key_width;
        for (int64_t d = 0; d < args.key_width; ++d) {
          const Turn turn = turn_of(args.rotation, half, d);
          S value = d_head[d];
          if (turn.turns) {
            const S a = d_head[turn.a];
            const S b = d_head[turn.b];
            const S c = cos[turn.pair];
            const S s = sin[turn.pair];
            value = turn.is_first ? fma(a, c, b * s) : fma(b, c, -(a * s));
          }
          out[d] = round_to<Operand>(value);
        }
      }
      for (int64_t i = rotated * args.key_width; i < args.d_qkv.dim(1); ++i)
        out_row[i] = round_to<Operand>(d_row[i]);
    }
  });
}

}  // namespace dsmoe::kernels::ref

// Rotation of q and k by their positions; k and v go to their page.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void rope_forward(const Context&, const RopeForward& args) {
  with_operand(args.q.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t heads = args.q.dim(1);
    const int64_t head_dim = args.q.dim(2);
    const int64_t half = head_dim / 2;
    const int64_t kv_heads = args.kv.shape.heads;
    auto* keys = static_cast<Operand*>(args.kv.keys);
    auto* values = static_cast<Operand*>(args.kv.values);
    for (int64_t t = 0; t < args.q.dim(0); ++t) {
      const S* row = args.qkv.as<S>() + t * (heads + 2 * kv_heads) * head_dim;
      const float* cos = args.cos.as<float>() + args.position.as<int32_t>()[t] * half;
      const float* sin = args.sin.as<float>() + args.position.as<int32_t>()[t] * half;
      const auto rotated = [&](const S* head, int64_t d) {
        const int64_t i = d % half;
        const S a = head[i];
        const S b = head[i + half];
        const S c = cos[i];
        const S s = sin[i];
        return round_to<Operand>(d < half ? fma(a, c, -(b * s)) : fma(b, c, a * s));
      };
      for (int64_t h = 0; h < heads; ++h) {
        Operand* q = args.q.as<Operand>() + (t * heads + h) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) q[d] = rotated(row + h * head_dim, d);
      }
      const int32_t slot = args.kv_slot.as<int32_t>()[t];
      const int64_t page = slot / kKeyBlock;
      const int64_t place = slot % kKeyBlock;
      for (int64_t h = 0; h < kv_heads; ++h) {
        const S* key = row + (heads + h) * head_dim;
        const S* value = row + (heads + kv_heads + h) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) {
          keys[args.kv.shape.key_offset(page, h) + args.kv.shape.key_index(place, d)] =
              rotated(key, d);
          values[args.kv.shape.value_offset(page, h) + args.kv.shape.value_index(place, d)] =
              round_to<Operand>(value[d]);
        }
      }
    }
  });
}

void rope_backward(const Context&, const RopeBackward& args) {
  with_operand(args.out.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t heads = args.num_heads + 2 * args.num_kv_heads;
    const int64_t head_dim = args.d_qkv.dim(1) / heads;
    const int64_t half = head_dim / 2;
    for (int64_t t = 0; t < args.d_qkv.dim(0); ++t) {
      const float* cos = args.cos.as<float>() + args.position.as<int32_t>()[t] * half;
      const float* sin = args.sin.as<float>() + args.position.as<int32_t>()[t] * half;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t begin = (t * heads + h) * head_dim;
        const S* d_head = args.d_qkv.as<S>() + begin;
        Operand* out = args.out.as<Operand>() + begin;
        const bool is_value = h >= args.num_heads + args.num_kv_heads;
        for (int64_t i = 0; i < half; ++i) {
          const S a = d_head[i];
          const S b = d_head[i + half];
          const S c = cos[i];
          const S s = sin[i];
          out[i] = round_to<Operand>(is_value ? a : fma(a, c, b * s));
          out[i + half] = round_to<Operand>(is_value ? b : fma(b, c, -(a * s)));
        }
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

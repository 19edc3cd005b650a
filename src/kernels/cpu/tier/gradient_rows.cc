// The backward pass and the optimiser, one row or range at a time.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/sixteen.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;
using cpu::RmsNormBackwardRows;

void norm_row_backward(const RmsNormBackwardRows& args, int64_t row) {
  const float* x = args.x + row * args.size;
  const float* d_out = args.d_out + row * args.size;
  float* d_x = args.d_x + row * args.size;
  const F32x16 size = broadcast(static_cast<float>(args.size));
  const float squares = join_sum(fold(
      x, args.size, zero(),
      [](F32x16 v, F32x16 lanes) __attribute__((always_inline)) { return fma(v, v, lanes); }));
  const F32x16 inverse =
      div(broadcast(1.0f), sqrt(add(div(broadcast(squares), size), broadcast(args.eps))));
  store_first(args.inverse + row, inverse, 1);
  F32x16 lanes = zero();
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 d_y = mul(load_up_to(d_out + i, count), load_up_to(args.weight + i, count));
        const F32x16 y = mul(load_up_to(x + i, count), inverse);
        const F32x16 next = add(lanes, mul(d_y, y));
        lanes = count == 16 ? next : first_lanes(count, next, lanes);
      });
  const F32x16 mean = div(broadcast(join_sum(lanes)), size);
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 d_y = mul(load_up_to(d_out + i, count), load_up_to(args.weight + i, count));
        const F32x16 y = mul(load_up_to(x + i, count), inverse);
        const F32x16 change = mul(inverse, sub(d_y, mul(y, mean)));
        store_up_to(d_x + i, add(load_up_to(d_x + i, count), change), count);
      });
}

template <class Out>
void cross_entropy_row(const cpu::CrossEntropyRow& args) {
  auto* out = static_cast<Out*>(args.d_logits);
  const F32x16 max = broadcast(args.max);
  const F32x16 sum = broadcast(args.sum);
  const F32x16 scale = broadcast(args.scale);
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 p = div(exp(sub(load_up_to(args.logits + i, count), max)), sum);
        store_up_to(out + i, mul(p, scale), count);
      });
  const F32x16 p = div(exp(sub(broadcast(args.logits[args.target]), max)), sum);
  store_up_to(out + args.target, mul(sub(p, broadcast(1.0f)), scale), 1);
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardRows& args) {
  for (int64_t row = args.row_begin; row < args.row_end; ++row) norm_row_backward(args, row);
}

void rms_norm_weight(const RmsNormBackwardRows& args) {
  for_each_sixteen(
      args.column_end - args.column_begin, [&](int64_t i,
                                               int64_t count) __attribute__((always_inline)) {
        const int64_t column = args.column_begin + i;
        for (int64_t s = 0; s < args.sequences; ++s) {
          F32x16 chain = zero();
          const int64_t end = args.starts[s + 1] * args.rows_per_token;
          for (int64_t t = args.starts[s] * args.rows_per_token; t < end; ++t) {
            const int64_t place = t * args.size + column;
            const F32x16 y = mul(load_up_to(args.x + place, count), broadcast(args.inverse[t]));
            chain = fma(load_up_to(args.d_out + place, count), y, chain);
          }
          float* d_weight = args.d_weight + column;
          store_up_to(d_weight, add(load_up_to(d_weight, count), chain), count);
        }
      });
}

void cross_entropy(const cpu::CrossEntropyRow& args) {
  if (args.type == Element::bf16) {
    cross_entropy_row<uint16_t>(args);
  } else {
    cross_entropy_row<float>(args);
  }
}

void adamw(const cpu::AdamwRange& args) {
  const F32x16 beta1 = broadcast(args.beta1);
  const F32x16 beta2 = broadcast(args.beta2);
  const F32x16 rest1 = broadcast(1.0f - args.beta1);
  const F32x16 rest2 = broadcast(1.0f - args.beta2);
  for_each_sixteen(
      args.size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 g = mul(load_up_to(args.gradient + i, count), broadcast(args.gradient_scale));
        const F32x16 m = fma(beta1, load_up_to(args.first_moment + i, count), mul(rest1, g));
        const F32x16 v =
            fma(beta2, load_up_to(args.second_moment + i, count), mul(mul(rest2, g), g));
        store_up_to(args.first_moment + i, m, count);
        store_up_to(args.second_moment + i, v, count);
        const F32x16 root = sqrt(div(v, broadcast(args.correction2)));
        const F32x16 update =
            div(div(m, broadcast(args.correction1)), add(root, broadcast(args.eps)));
        const F32x16 w = load_up_to(args.weight + i, count);
        const F32x16 step =
            mul(broadcast(args.lr), add(update, mul(broadcast(args.weight_decay), w)));
        const F32x16 moved = sub(w, step);
        store_up_to(args.weight + i, moved, count);
        if (args.rounded != nullptr) store_up_to(args.rounded + i, moved, count);
        if (args.clear_gradient) store_up_to(args.gradient + i, zero(), count);
      });
}

// Lanes of double side by side: the compiler finds the registers.
double sum_of_squares(const float* x, int64_t size) {
  double lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int j = 0; j < 16; ++j) {
      const auto value = static_cast<double>(x[i + j]);
      lanes[j] = lanes[j] + value * value;
    }
  }
  for (int j = 0; i + j < size; ++j) {
    const auto value = static_cast<double>(x[i + j]);
    lanes[j] = lanes[j] + value * value;
  }
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = lanes[j] + lanes[j + half];
  }
  return lanes[0];
}

}  // namespace dsmoe::kernels::DSMOE_TIER

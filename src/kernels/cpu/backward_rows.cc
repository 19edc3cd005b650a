// The backward pass of ops on tokens and columns, and the optimiser.
#include <algorithm>
#include <cstring>

#include "base/functions.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/split.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::cpu {
namespace {

constexpr int64_t kColumns = 64;  // columns of one unit of work, and of a strip of chains

// Units below which waking the other threads costs more than it saves, for units of this many
// elements.
int64_t unit_grain(int64_t elements) {
  constexpr int64_t kElements = 16 * 1024;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, elements));
}

float widened(tensor::Bf16 value) { return tensor::to_float(value); }
float widened(float value) { return value; }

// Columns [begin, begin + count), at most kColumns, of all rows.
template <class T>
void add_bias_columns(const BiasGradient& args, int64_t begin, int64_t count) {
  const int64_t size = args.dy.dim(1);
  const int32_t* starts = args.sequence_starts.as<int32_t>();
  float* total = args.d_bias.as<float>() + begin;
  for (int64_t s = 0; s + 1 < args.sequence_starts.dim(0); ++s) {
    float chain[kColumns] = {};
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
      const T* dy = args.dy.as<T>() + t * size + begin;
      for (int64_t i = 0; i < count; ++i) chain[i] = chain[i] + widened(dy[i]);
    }
    for (int64_t i = 0; i < count; ++i) total[i] = total[i] + chain[i];
  }
}

}  // namespace

void bias_gradient(const Tier&, const Context& context, const BiasGradient& args) {
  const int64_t size = args.dy.dim(1);
  const bool is_bf16 = element_of(args.dy.dtype) == Element::bf16;
  parallel_for(*context.pool, size, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += kColumns) {
      const int64_t count = std::min(kColumns, end - n);
      if (is_bf16) {
        add_bias_columns<tensor::Bf16>(args, n, count);
      } else {
        add_bias_columns<float>(args, n, count);
      }
    }
  });
}

void round_values(const Tier& tier, const Context& context, const RoundValues& args) {
  const bool is_bf16 = element_of(args.out.dtype) == Element::bf16;
  const float* x = args.x.as<float>();
  parallel_for(*context.pool, args.x.num_elements(), unit_grain(1),
               [&](int64_t begin, int64_t end) {
                 if (is_bf16) {
                   tier.round(x + begin, args.out.as<tensor::Bf16>() + begin, end - begin);
                 } else {
                   std::memmove(args.out.as<float>() + begin, x + begin,
                                static_cast<std::size_t>(end - begin) * sizeof(float));
                 }
               });
}

void router_backward(const Tier&, const Context& context, const RouterBackward& args) {
  parallel_for(*context.pool, args.affinity.dim(0), unit_grain(4 * args.affinity.dim(1)),
               [&](int64_t begin, int64_t end) {
                 RouterBackward part = args;
                 part.affinity = args.affinity.rows(begin, end);
                 part.index = args.index.rows(begin, end);
                 part.row_of_slot = args.row_of_slot.rows(begin, end);
                 if (args.d_affinity) part.d_affinity = args.d_affinity.rows(begin, end);
                 part.d_logits = args.d_logits.rows(begin, end);
                 ref::router_backward(context, part);
               });
}

void rms_norm_backward(const Tier& tier, const Context& context, const RmsNormBackward& args) {
  const int64_t hidden = args.x.dim(1);
  const int32_t* starts = args.sequence_starts.as<int32_t>();
  const int64_t sequences = args.sequence_starts.dim(0) - 1;
  if (sequences < 1) return;
  const RmsNormBackwardRows all{
      .x = args.x.as<float>(),
      .weight = args.weight.as<float>(),
      .d_out = args.d_out.as<float>(),
      .d_x = args.d_x.as<float>(),
      .inverse = thread_scratch(args.x.dim(0)),  // of this thread, shared by all
      .size = hidden,
      .eps = static_cast<float>(args.eps),
      .d_weight = args.d_weight ? args.d_weight.as<float>() : nullptr,
      .starts = starts,
      .rows_per_token = args.rows_per_token,
      .sequences = sequences};
  const int64_t first = starts[0] * args.rows_per_token;
  parallel_for(*context.pool, starts[sequences] * args.rows_per_token - first, unit_grain(hidden),
               [&](int64_t begin, int64_t end) {
                 RmsNormBackwardRows rows = all;
                 rows.row_begin = first + begin;
                 rows.row_end = first + end;
                 tier.rms_norm_backward(rows);
               });
  if (!args.d_weight) return;
  parallel_for(*context.pool, hidden, kColumns, [&](int64_t begin, int64_t end) {
    RmsNormBackwardRows columns = all;
    columns.column_begin = begin;
    columns.column_end = end;
    tier.rms_norm_weight(columns);
  });
}

void rope_backward(const Tier& tier, const Context& context, const RopeBackward& args) {
  const int64_t rotated_heads = args.num_heads + args.num_kv_heads;
  const int64_t row = args.d_qkv.dim(1);
  const int64_t half = args.cos.dim(1);
  const bool is_bf16 = element_of(args.out.dtype) == Element::bf16;
  parallel_for(*context.pool, args.d_qkv.dim(0), unit_grain(row), [&](int64_t begin, int64_t end) {
    float* back = thread_scratch(row + half + HeadRotation::scratch(half));
    float* sin = back + row;
    const HeadRotation rotation(tier, args.rotation, half, args.key_width, sin + half);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t place = args.position.as<int32_t>()[t] * half;
      const float* d_row = args.d_qkv.as<float>() + t * row;
      // The rotation back is the rotation by the opposite angle: only the sine changes its sign.
      for (int64_t i = 0; i < half; ++i) sin[i] = -args.sin.as<float>()[place + i];
      for (int64_t h = 0; h < rotated_heads; ++h) {
        rotation.turn(d_row + h * args.key_width, args.cos.as<float>() + place, sin,
                      back + h * args.key_width);
      }
      std::copy(d_row + rotated_heads * args.key_width, d_row + row,
                back + rotated_heads * args.key_width);
      if (is_bf16) {
        tier.round(back, args.out.as<tensor::Bf16>() + t * row, row);
      } else {
        std::memcpy(args.out.as<float>() + t * row, back,
                    static_cast<std::size_t>(row) * sizeof(float));
      }
    }
  });
}

void embedding_backward(const Tier&, const Context& context, const EmbeddingBackward& args) {
  const int64_t hidden = args.d_out.dim(1);
  parallel_for(*context.pool, hidden, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < args.ids.dim(0); ++t) {
      float* row = args.d_table.as<float>() + args.ids.as<int32_t>()[t] * hidden;
      const float* d_out = args.d_out.as<float>() + t * hidden;
      for (int64_t i = begin; i < end; ++i) row[i] = row[i] + d_out[i];
    }
  });
}

void cross_entropy_backward(const Tier& tier, const Context& context,
                            const CrossEntropyBackward& args) {
  const int64_t vocabulary = args.logits.dim(1);
  const auto row_bytes = vocabulary * static_cast<int64_t>(tensor::size_of(args.d_logits.dtype));
  const Element type = element_of(args.d_logits.dtype);
  const auto one_row = [&](int64_t r) {
    const float* s = args.logits.as<float>() + r * vocabulary;
    char* d_logits = static_cast<char*>(args.d_logits.data) + r * row_bytes;
    const int32_t target = args.target.as<int32_t>()[r];
    float& log_prob = args.log_prob.as<float>()[r];
    if (target < 0) {
      log_prob = 0;
      std::memset(d_logits, 0, static_cast<std::size_t>(row_bytes));
      return;
    }
    const MaxAndSum row = tier.max_and_sum(s, vocabulary);
    log_prob = (s[target] - row.max) - log_f32(row.sum);
    tier.cross_entropy({.logits = s,
                        .size = vocabulary,
                        .target = target,
                        .max = row.max,
                        .sum = row.sum,
                        .scale = static_cast<float>(args.scale),
                        .type = type,
                        .d_logits = d_logits});
  };
  parallel_for(*context.pool, args.logits.dim(0), unit_grain(8 * vocabulary),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) one_row(r);
               });
}

void sum_of_squares(const Tier& tier, const Context& context, const SumOfSquares& args) {
  const float* x = args.x.as<float>();
  const int64_t size = args.x.num_elements();
  const int64_t part_size = square_part_size(size);
  const int64_t num_parts = (size + part_size - 1) / part_size;
  double part_sums[kMaxSquareParts];
  parallel_for(*context.pool, num_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * part_size;
      part_sums[part] = tier.sum_of_squares(x + first, std::min(part_size, size - first));
    }
  });
  double sum = 0;
  for (int64_t part = 0; part < num_parts; ++part) sum += part_sums[part];
  args.out.as<double>()[0] = sum;
}

void adamw_step(const Tier& tier, const Context& context, const AdamwStep& args) {
  auto* rounded = static_cast<uint16_t*>(args.rounded.data);
  parallel_for(*context.pool, args.weight.num_elements(), unit_grain(4),
               [&](int64_t begin, int64_t end) {
                 tier.adamw({.weight = args.weight.as<float>() + begin,
                             .gradient = args.gradient.as<float>() + begin,
                             .first_moment = args.first_moment.as<float>() + begin,
                             .second_moment = args.second_moment.as<float>() + begin,
                             .size = end - begin,
                             .gradient_scale = args.gradient_scale,
                             .lr = args.lr,
                             .beta1 = args.beta1,
                             .beta2 = args.beta2,
                             .eps = args.eps,
                             .weight_decay = args.weight_decay,
                             .correction1 = args.correction1,
                             .correction2 = args.correction2,
                             .clear_gradient = args.clear_gradient,
                             .rounded = rounded == nullptr ? nullptr : rounded + begin});
               });
}

}  // namespace dsmoe::kernels::cpu

// Ops on one token at a time: embedding, norm, rotation, combine, log-probabilities.
#include <bit>

#include "base/functions.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {
namespace {

// Tokens below which waking the other threads costs more than it saves, for rows of this many
// elements.
int64_t row_grain(int64_t row_elements) {
  constexpr int64_t kElements = 16 * 1024;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, row_elements));
}

// Writes k and v of positions into the panels of their pages, and q into rows.
template <class T>
class RopeRows {
 public:
  RopeRows(const Tier& tier, const RopeForward& args)
      : tier_(tier),
        args_(args),
        shape_(args.kv.shape),
        type_(element_of(args.q.dtype)),
        heads_(args.q.dim(1)),
        half_(args.cos.dim(1)),
        rotated_(thread_scratch(rope_scratch(shape_.key_width, shape_.value_width))),
        rotation_(tier, args.rotation, half_, shape_.key_width, rotated_ + shape_.key_width),
        rows_(reinterpret_cast<T*>(rotated_ + shape_.key_width +
                                   HeadRotation::scratch(shape_.key_width / 2))) {}

  void write(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end;) {
      if (end - t >= kPanelWidth && fills_panel(t)) {
        write_panel(t);
        t += kPanelWidth;
      } else {
        write_one(t++);
      }
    }
  }

 private:
  // The slots of sixteen positions from t on are those of one panel of keys.
  bool fills_panel(int64_t t) const {
    const int32_t* slot = args_.kv_slot.as<int32_t>() + t;
    bool fills = slot[0] % kPanelWidth == 0;
    for (int32_t i = 1; i < kPanelWidth; ++i) fills = fills && slot[i] == slot[0] + i;
    return fills;
  }

  void write_one(int64_t t) {
    const int64_t slot = args_.kv_slot.as<int32_t>()[t];
    const int64_t page = slot / kKeyBlock;
    const int64_t place = slot % kKeyBlock;
    ask_for_place(page, place);
    write_queries(t);
    for (int64_t h = 0; h < shape_.heads; ++h) {
      T* keys = static_cast<T*>(args_.kv.keys) + shape_.key_offset(page, h);
      rotate(t, heads_ + h, rows_);
      for (int64_t d = 0; d < shape_.key_width; ++d) keys[shape_.key_index(place, d)] = rows_[d];
      T* values = static_cast<T*>(args_.kv.values) + shape_.value_offset(page, h);
      if (has_values()) round(value_of(t, h), shape_.value_width, rows_);
      for (int64_t d = 0; d < shape_.value_width; ++d)
        values[shape_.value_index(place, d)] = rows_[d];
    }
  }

  void write_panel(int64_t t) {
    const int64_t slot = args_.kv_slot.as<int32_t>()[t];
    const int64_t page = slot / kKeyBlock;
    const int64_t place = slot % kKeyBlock;
    for (int64_t i = 0; i < kPanelWidth; ++i) write_queries(t + i);
    for (int64_t h = 0; h < shape_.heads; ++h) {
      T* keys = static_cast<T*>(args_.kv.keys) + shape_.key_offset(page, h);
      for (int64_t i = 0; i < kPanelWidth; ++i)
        rotate(t + i, heads_ + h, rows_ + i * shape_.key_width);
      tier_.pack({.source = rows_,
                  .source_type = type_,
                  .target_type = type_,
                  .k = shape_.key_width,
                  .lane_end = kPanelWidth,
                  .panel = keys + shape_.key_index(place, 0)});
      T* values = static_cast<T*>(args_.kv.values) + shape_.value_offset(page, h);
      for (int64_t i = 0; has_values() && i < kPanelWidth; ++i)
        round(value_of(t + i, h), shape_.value_width, rows_ + i * shape_.value_width);
      for (int64_t d = 0; d < shape_.value_width; d += kPanelWidth) {
        tier_.pack_columns(
            {.source = rows_ + d,
             .source_stride = has_values() ? shape_.value_width : shape_.key_width,
             .rows = kPanelWidth,
             .k_begin = place,
             .columns = static_cast<int>(std::min(kPanelWidth, shape_.value_width - d)),
             .source_type = type_,
             .target_type = type_,
             .panel = values + shape_.value_index(0, d)});
      }
    }
  }

  void write_queries(int64_t t) {
    for (int64_t h = 0; h < heads_; ++h)
      rotate(t, h, static_cast<T*>(args_.q.data) + (t * heads_ + h) * shape_.key_width);
  }

  // The lines that the position's keys and values go to, a thousand of them and none in a cache:
  // stores would wait for one after the other.
  void ask_for_place(int64_t page, int64_t place) const {
    for (int64_t h = 0; h < shape_.heads; ++h) {
      const T* keys = static_cast<const T*>(args_.kv.keys) + shape_.key_offset(page, h);
      const T* values = static_cast<const T*>(args_.kv.values) + shape_.value_offset(page, h);
      for (int64_t d = 0; d < shape_.key_width; d += 2)
        __builtin_prefetch(keys + shape_.key_index(place, d), 1);
      for (int64_t d = 0; d < shape_.value_width; d += kPanelWidth)
        __builtin_prefetch(values + shape_.value_index(place, d), 1);
    }
  }

  // Else they are what has just been written as the key.
  bool has_values() const { return shape_.values == KvValues::own; }
  const float* row_of(int64_t t) const { return args_.qkv.as<float>() + t * args_.qkv.dim(1); }
  const float* value_of(int64_t t, int64_t head) const {
    return row_of(t) + (heads_ + shape_.heads) * shape_.key_width + head * shape_.value_width;
  }
  void rotate(int64_t t, int64_t head, T* out) {
    const int64_t place = args_.position.as<int32_t>()[t] * half_;
    rotation_.turn(row_of(t) + head * shape_.key_width, args_.cos.as<float>() + place,
                   args_.sin.as<float>() + place, rotated_);
    round(rotated_, shape_.key_width, out);
  }
  void round(const float* head, int64_t width, T* out) const {
    if constexpr (std::is_same_v<T, float>) {
      std::copy_n(head, width, out);
    } else {
      tier_.round(head, out, width);
    }
  }

  const Tier& tier_;
  const RopeForward& args_;
  KvShape shape_;
  Element type_;
  int64_t heads_, half_;
  float* rotated_;  // [key_width]
  HeadRotation rotation_;
  T* rows_;  // [16, key_width] or [16, value_width]
};

// The terms of one token by ascending expert, and after which of them partial sums join: two
// neighbours a < b belong to halves that meet at the level bit_width(a ^ b) of the tree.
class CombineTerms {
 public:
  CombineTerms(const CombineForward& args, int64_t t) {
    const int64_t top_k = args.routed ? args.index.dim(1) : 0;
    DSMOE_CHECK(top_k <= kMaxTerms,
                "combine_forward: {} experts per token, at most {} are supported", top_k,
                kMaxTerms);
    if (top_k == 0) return;
    const int32_t* expert = args.index.as<int32_t>() + t * top_k;
    const int32_t* row = args.row_of_slot.as<int32_t>() + t * top_k;
    const int64_t row_bytes =
        args.residual.dim(1) * static_cast<int64_t>(tensor::size_of(args.routed.dtype));
    int slots[kMaxTerms];
    for (int slot = 0; slot < top_k; ++slot) {
      if (row[slot] >= 0) slots[count_++] = slot;
    }
    std::sort(slots, slots + count_, [&](int a, int b) { return expert[a] < expert[b]; });
    for (int i = 0; i < count_; ++i) {
      routed_[i] = static_cast<const char*>(args.routed.data) + row[slots[i]] * row_bytes;
      if (args.gate) gate_[i] = args.gate.as<float>()[t * top_k + slots[i]];
    }
    plan_joins(expert, slots);
    has_gates_ = static_cast<bool>(args.gate);
  }

  CombineRow row() const {
    return {
        .routed = routed_, .gate = has_gates_ ? gate_ : nullptr, .joins = joins_, .terms = count_};
  }

 private:
  static constexpr int kMaxTerms = kMaxExpertsPerToken;

  void plan_joins(const int32_t* expert, const int* slots) {
    constexpr int kRoot = 64;
    int pending[kMaxPartialSums];  // level at which a partial sum meets the next one
    int depth = 0;
    for (int i = 0; i < count_; ++i) {
      const auto a = static_cast<uint32_t>(expert[slots[i]]);
      const int level =
          i + 1 < count_
              ? static_cast<int>(std::bit_width(a ^ static_cast<uint32_t>(expert[slots[i + 1]])))
              : kRoot;
      joins_[i] = 0;
      while (depth > 0 && pending[depth - 1] < level) {
        --depth;
        ++joins_[i];
      }
      pending[depth++] = level;
    }
  }

  int count_ = 0;
  bool has_gates_ = false;
  const void* routed_[kMaxTerms];
  float gate_[kMaxTerms];
  uint8_t joins_[kMaxTerms];
};

int32_t arg_max(const float* s, int64_t size, float max) {
  // The first element that equals the maximum is the first that no earlier one reaches.
  const float* first = std::find(s, s + size, max);
  return first == s + size ? 0 : static_cast<int32_t>(first - s);
}

}  // namespace

void embedding_forward(const Tier& tier, const Context& context, const EmbeddingForward& args) {
  const int64_t hidden = args.table.dim(1);
  const auto size = static_cast<int64_t>(tensor::size_of(args.table.dtype));
  const Element type = element_of(args.table.dtype);
  parallel_for(*context.pool, args.ids.dim(0), row_grain(hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const char* row =
          static_cast<const char*>(args.table.data) + args.ids.as<int32_t>()[t] * hidden * size;
      float* out = args.out.as<float>() + t * hidden;
      if (type == Element::bf16) {
        tier.widen(row, out, hidden);
      } else {
        std::memcpy(out, row, static_cast<std::size_t>(hidden * size));
      }
    }
  });
}

void rms_norm_forward(const Tier& tier, const Context& context, const RmsNormForward& args) {
  const int64_t hidden = args.x.dim(1);
  const RmsNormRows all{.x = args.x.as<float>(),
                        .weight = args.weight.as<float>(),
                        .out = args.out.data,
                        .type = element_of(args.out.dtype),
                        .size = hidden,
                        .eps = static_cast<float>(args.eps)};
  parallel_for(*context.pool, args.x.dim(0), row_grain(hidden), [&](int64_t begin, int64_t end) {
    RmsNormRows rows = all;
    rows.row_begin = begin;
    rows.row_end = end;
    tier.rms_norm(rows);
  });
}

int64_t rope_scratch(int64_t key_width, int64_t value_width) {
  return key_width + HeadRotation::scratch(key_width / 2) +
         kPanelWidth * std::max(key_width, value_width);
}

void rope_forward(const Tier& tier, const Context& context, const RopeForward& args) {
  DSMOE_CHECK(args.kv.shape.layout == WeightLayout::panels,
              "the CPU tiers need KV pages in panels");
  parallel_for(*context.pool, args.q.dim(0), row_grain(args.qkv.dim(1)),
               [&](int64_t begin, int64_t end) {
                 if (element_of(args.q.dtype) == Element::bf16) {
                   RopeRows<tensor::Bf16>(tier, args).write(begin, end);
                 } else {
                   RopeRows<float>(tier, args).write(begin, end);
                 }
               });
}

void combine_forward(const Tier& tier, const Context& context, const CombineForward& args) {
  const int64_t hidden = args.residual.dim(1);
  const DType dtype = args.routed ? args.routed.dtype : args.shared.dtype;
  const Element type = element_of(dtype);
  const auto row_bytes = hidden * static_cast<int64_t>(tensor::size_of(dtype));
  parallel_for(
      *context.pool, args.residual.dim(0), row_grain(4 * hidden), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const CombineTerms terms(args, t);
          CombineRow row = terms.row();
          row.shared =
              args.shared ? static_cast<const char*>(args.shared.data) + t * row_bytes : nullptr;
          row.shared_gate = args.shared_gate ? args.shared_gate.as<float>() + t : nullptr;
          row.residual = args.residual.as<float>() + t * hidden;
          row.add_to_residual = args.store == Store::accumulate;
          row.type = type;
          row.size = hidden;
          tier.combine(row);
        }
      });
}

void log_prob_forward(const Tier& tier, const Context& context, const LogProbForward& args) {
  const int64_t vocabulary = args.logits.dim(1);
  parallel_for(*context.pool, args.logits.dim(0), row_grain(4 * vocabulary),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const float* s = args.logits.as<float>() + r * vocabulary;
                   const MaxAndSum row = tier.max_and_sum(s, vocabulary);
                   const int32_t target = args.target.as<int32_t>()[r];
                   args.log_prob.as<float>()[r] =
                       target < 0 ? 0.0f : (s[target] - row.max) - log_f32(row.sum);
                   if (args.argmax) args.argmax.as<int32_t>()[r] = arg_max(s, vocabulary, row.max);
                 }
               });
}

void argmax_forward(const Tier& tier, const Context& context, const ArgmaxForward& args) {
  const int64_t vocabulary = args.logits.dim(1);
  parallel_for(*context.pool, args.logits.dim(0), row_grain(vocabulary),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   args.index.as<int32_t>()[r] = static_cast<int32_t>(
                       tier.index_of_max(args.logits.as<float>() + r * vocabulary, vocabulary));
                 }
               });
}

void sample_forward(const Tier&, const Context& context, const SampleForward& args) {
  const int64_t vocabulary = args.logits.dim(1);
  parallel_for(*context.pool, args.logits.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      args.index.as<int32_t>()[r] = sample_row(
          {args.logits.as<float>() + r * vocabulary, static_cast<std::size_t>(vocabulary)},
          args.best.as<int32_t>()[r], args.rule[static_cast<std::size_t>(r)]);
    }
  });
}

}  // namespace dsmoe::kernels::cpu

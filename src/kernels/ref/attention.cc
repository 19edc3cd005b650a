// Attention of one query head at a time: blocks of 64 keys, spans of 8 blocks, spans merged
// ascending.
#include <algorithm>
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// Softmax numerators' maximum, their sum, and their product with V, over some keys.
template <class S>
struct Partial {
  S max = -std::numeric_limits<S>::infinity();
  S sum = 0;
  std::vector<S> out;
};

template <class Operand>
void visit_block(const AttentionForward& args, const Operand* q, int64_t kv_head, int32_t page,
                 int64_t keys_seen, Partial<Scalar<Operand>>& span) {
  using S = Scalar<Operand>;
  const int64_t key_width = args.kv.shape.key_width;
  const Operand* keys =
      static_cast<const Operand*>(args.kv.keys) + args.kv.shape.key_offset(page, kv_head);
  const Operand* values =
      static_cast<const Operand*>(args.kv.values) + args.kv.shape.value_offset(page, kv_head);
  S s[kKeyBlock];
  for (int64_t j = 0; j < keys_seen; ++j) {
    const S dot = product<Operand>(
        0, key_width, [&](int64_t d) { return widen(q[d]); },
        [&](int64_t d) { return widen(keys[args.kv.shape.key_index(j, d)]); });
    s[j] = dot * S(args.scale);
  }
  const S max = larger(span.max, row_max<S>(keys_seen, [&](int64_t j) { return s[j]; }));
  const S correction = exp(span.max - max);
  S p[kKeyBlock] = {};
  for (int64_t j = 0; j < keys_seen; ++j) p[j] = exp(s[j] - max);
  span.sum = fma(span.sum, correction, row_sum<S>(kKeyBlock, [&](int64_t j) { return p[j]; }));
  span.max = max;
  for (int64_t d = 0; d < args.kv.shape.value_width; ++d) {
    span.out[d] = product<Operand>(
        span.out[d] * correction, kKeyBlock,
        [&](int64_t j) { return widen(round_to<Operand>(p[j])); },
        [&](int64_t j) { return widen(values[args.kv.shape.value_index(j, d)]); });
  }
}

template <class S>
void merge(Partial<S>& total, const Partial<S>& span) {
  const S max = larger(total.max, span.max);
  const S c1 = exp(total.max - max);
  const S c2 = exp(span.max - max);
  total.sum = fma(total.sum, c1, span.sum * c2);
  for (std::size_t d = 0; d < span.out.size(); ++d)
    total.out[d] = fma(total.out[d], c1, span.out[d] * c2);
  total.max = max;
}

template <class Operand>
void attend(const AttentionForward& args, const int32_t* pages, int64_t num_keys, int64_t token,
            int64_t head) {
  using S = Scalar<Operand>;
  const int64_t heads = args.q.dim(1);
  const int64_t value_width = args.kv.shape.value_width;
  const int64_t kv_head = head / (heads / args.kv.shape.heads);
  const Operand* q = args.q.as<Operand>() + (token * heads + head) * args.kv.shape.key_width;
  Partial<S> total;
  for (int64_t span_begin = 0; span_begin < num_keys; span_begin += kKeyBlock * kBlocksPerSpan) {
    Partial<S> span;
    span.out.assign(value_width, S(0));
    const int64_t span_end = std::min(num_keys, span_begin + kKeyBlock * kBlocksPerSpan);
    for (int64_t key = span_begin; key < span_end; key += kKeyBlock) {
      visit_block<Operand>(args, q, kv_head, pages[key / kKeyBlock],
                           std::min(kKeyBlock, span_end - key), span);
    }
    if (span_begin == 0) {
      total = span;
    } else {
      merge(total, span);
    }
  }
  Operand* out = args.out.as<Operand>() + (token * heads + head) * value_width;
  for (int64_t d = 0; d < value_width; ++d) out[d] = round_to<Operand>(total.out[d] / total.sum);
}

}  // namespace

void attention_forward(const Context&, const AttentionForward& args) {
  with_operand(args.q.dtype, [&]<class Operand>() {
    const int32_t* starts = args.q_starts.as<int32_t>();
    for (int64_t s = 0; s + 1 < args.q_starts.dim(0); ++s) {
      const int32_t* pages = args.page_table.as<int32_t>() + s * args.page_table.dim(1);
      for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
        const int64_t num_keys = int64_t{args.position.as<int32_t>()[t]} + 1;
        for (int64_t h = 0; h < args.q.dim(1); ++h) attend<Operand>(args, pages, num_keys, t, h);
      }
    }
  });
}

namespace {

// Softmax statistics of one query, with the sums of the forward pass.
template <class S>
struct RowStatistics {
  S max = 0;
  S sum = 0;
  S d_dot_out = 0;  // D = row_sum(d_out * out)
};

// All numbers of one (sequence, head): probabilities and score gradients [n, n] for keys up to the
// query.
template <class Operand>
class HeadBackward {
 public:
  using S = Scalar<Operand>;

  HeadBackward(const AttentionBackward& args, int64_t sequence, int64_t head)
      : args_(args),
        heads_(args.q.dim(1)),
        key_width_(args.kv.shape.key_width),
        value_width_(args.kv.shape.value_width),
        head_(head),
        kv_head_(head / (heads_ / args.kv.shape.heads)),
        first_token_(args.q_starts.as<int32_t>()[sequence]),
        size_(args.q_starts.as<int32_t>()[sequence + 1] - first_token_),
        pages_(args.page_table.as<int32_t>() + sequence * args.page_table.dim(1)),
        p_(size_ * size_, S(0)),
        ds_(size_ * size_, S(0)) {
    for (int64_t t = 0; t < size_; ++t) fill_row(t);
  }

  // dq[t][d], one chain over the key blocks.
  S d_query(int64_t t, int64_t d) const {
    S acc = 0;
    for (int64_t block = 0; block <= t; block += kKeyBlock) {
      acc = product<Operand>(
          acc, kKeyBlock,
          [&](int64_t j) { return widen(round_to<Operand>(at(ds_, t, block + j))); },
          [&](int64_t j) { return block + j < size_ ? key(block + j, d) : S(0); });
    }
    return acc;
  }

  // Continues the chains of dk[j][d] and dv[j][d] over the query blocks.
  S d_key(int64_t j, int64_t d, S acc) const {
    return over_queries(ds_, j, acc, [&](int64_t t) { return query(t, d); });
  }
  S d_value(int64_t j, int64_t d, S acc) const {
    return over_queries(p_, j, acc,
                        [&](int64_t t) { return widen(row(args_.d_out, t, value_width_)[d]); });
  }

 private:
  const Operand* row(const TensorView& view, int64_t t, int64_t width) const {
    return view.as<Operand>() + ((first_token_ + t) * heads_ + head_) * width;
  }
  S query(int64_t t, int64_t d) const { return widen(row(args_.q, t, key_width_)[d]); }
  S key(int64_t j, int64_t d) const {
    const auto* keys = static_cast<const Operand*>(args_.kv.keys) +
                       args_.kv.shape.key_offset(pages_[j / kKeyBlock], kv_head_);
    return widen(keys[args_.kv.shape.key_index(j % kKeyBlock, d)]);
  }
  S value(int64_t j, int64_t d) const {
    const auto* values = static_cast<const Operand*>(args_.kv.values) +
                         args_.kv.shape.value_offset(pages_[j / kKeyBlock], kv_head_);
    return widen(values[args_.kv.shape.value_index(j % kKeyBlock, d)]);
  }
  S at(const std::vector<S>& matrix, int64_t t, int64_t j) const {
    return t < size_ && j < size_ ? matrix[t * size_ + j] : S(0);
  }

  template <class Factor>
  S over_queries(const std::vector<S>& matrix, int64_t j, S acc, Factor&& factor) const {
    for (int64_t block = j / kKeyBlock * kKeyBlock; block < size_; block += kKeyBlock) {
      acc = product<Operand>(
          acc, kKeyBlock,
          [&](int64_t i) { return widen(round_to<Operand>(at(matrix, block + i, j))); },
          [&](int64_t i) { return block + i < size_ ? factor(block + i) : S(0); });
    }
    return acc;
  }

  // The maximum and the sum over keys 0 .. t, spans merged as in the forward pass.
  RowStatistics<S> statistics(int64_t t, const std::vector<S>& s) const {
    Partial<S> total;
    for (int64_t span_begin = 0; span_begin <= t; span_begin += kKeyBlock * kBlocksPerSpan) {
      Partial<S> span;
      for (int64_t block = span_begin;
           block <= t && block < span_begin + kKeyBlock * kBlocksPerSpan; block += kKeyBlock) {
        const int64_t count = std::min(kKeyBlock, t + 1 - block);
        const S max = larger(span.max, row_max<S>(count, [&](int64_t j) { return s[block + j]; }));
        const S correction = exp(span.max - max);
        span.sum = fma(span.sum, correction,
                       row_sum<S>(count, [&](int64_t j) { return exp(s[block + j] - max); }));
        span.max = max;
      }
      if (span_begin == 0) {
        total = span;
      } else {
        merge(total, span);
      }
    }
    const Operand* out = row(args_.out, t, value_width_);
    const Operand* d_out = row(args_.d_out, t, value_width_);
    const S d_dot_out =
        row_sum<S>(value_width_, [&](int64_t d) { return widen(d_out[d]) * widen(out[d]); });
    return {.max = total.max, .sum = total.sum, .d_dot_out = d_dot_out};
  }

  void fill_row(int64_t t) {
    std::vector<S> s(t + 1);
    for (int64_t j = 0; j <= t; ++j) {
      const S dot = product<Operand>(
          0, key_width_, [&](int64_t d) { return query(t, d); },
          [&](int64_t d) { return key(j, d); });
      s[j] = dot * S(args_.scale);
    }
    const RowStatistics<S> stats = statistics(t, s);
    for (int64_t j = 0; j <= t; ++j) {
      const S p = exp(s[j] - stats.max) / stats.sum;
      const S dp = product<Operand>(
          0, value_width_, [&](int64_t d) { return widen(row(args_.d_out, t, value_width_)[d]); },
          [&](int64_t d) { return value(j, d); });
      p_[t * size_ + j] = p;
      ds_[t * size_ + j] = (p * (dp - stats.d_dot_out)) * S(args_.scale);
    }
  }

  const AttentionBackward& args_;
  int64_t heads_, key_width_, value_width_, head_, kv_head_, first_token_, size_;
  const int32_t* pages_;
  std::vector<S> p_;   // [n, n], 0 above the diagonal
  std::vector<S> ds_;  // [n, n]
};

}  // namespace

void attention_backward(const Context&, const AttentionBackward& args) {
  with_operand(args.q.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t heads = args.q.dim(1);
    const int64_t kv_heads = args.kv.shape.heads;
    const int64_t key_width = args.kv.shape.key_width;
    const int64_t value_width = args.kv.shape.value_width;
    const int32_t* starts = args.q_starts.as<int32_t>();
    for (int64_t s = 0; s + 1 < args.q_starts.dim(0); ++s) {
      for (int64_t head = 0; head < heads; ++head) {
        const HeadBackward<Operand> backward(args, s, head);
        const int64_t kv_head = head / (heads / kv_heads);
        const bool first_of_group = head % (heads / kv_heads) == 0;
        for (int64_t t = 0; t < starts[s + 1] - starts[s]; ++t) {
          S* row = args.d_qkv.as<S>() + (starts[s] + t) * args.d_qkv.dim(1);
          S* d_query = row + head * key_width;
          S* d_key = row + (heads + kv_head) * key_width;
          S* d_value = row + (heads + kv_heads) * key_width + kv_head * value_width;
          for (int64_t d = 0; d < key_width; ++d) {
            d_query[d] = backward.d_query(t, d);
            d_key[d] = backward.d_key(t, d, first_of_group ? S(0) : d_key[d]);
          }
          for (int64_t d = 0; d < value_width; ++d)
            d_value[d] = backward.d_value(t, d, first_of_group ? S(0) : d_value[d]);
        }
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

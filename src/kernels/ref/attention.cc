// Attention of one query head at a time: blocks of 64 keys, spans of 8 blocks, spans merged
// ascending.
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
  const int64_t head_dim = args.kv.head_dim;
  const Operand* keys =
      static_cast<const Operand*>(args.kv.keys) + args.kv.key_offset(page, kv_head);
  const Operand* values =
      static_cast<const Operand*>(args.kv.values) + args.kv.value_offset(page, kv_head);
  S s[kKeyBlock];
  for (int64_t j = 0; j < keys_seen; ++j) {
    const S dot = product<Operand>(
        0, head_dim, [&](int64_t d) { return widen(q[d]); },
        [&](int64_t d) { return widen(keys[args.kv.key_index(j, d)]); });
    s[j] = dot * S(args.scale);
  }
  const S max = larger(span.max, row_max<S>(keys_seen, [&](int64_t j) { return s[j]; }));
  const S correction = exp(span.max - max);
  S p[kKeyBlock] = {};
  for (int64_t j = 0; j < keys_seen; ++j) p[j] = exp(s[j] - max);
  span.sum = fma(span.sum, correction, row_sum<S>(kKeyBlock, [&](int64_t j) { return p[j]; }));
  span.max = max;
  for (int64_t d = 0; d < head_dim; ++d) {
    span.out[d] = product<Operand>(
        span.out[d] * correction, kKeyBlock,
        [&](int64_t j) { return widen(round_to<Operand>(p[j])); },
        [&](int64_t j) { return widen(values[args.kv.value_index(j, d)]); });
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
  const int64_t head_dim = args.kv.head_dim;
  const int64_t kv_head = head / (heads / args.kv.num_kv_heads);
  const Operand* q = args.q.as<Operand>() + (token * heads + head) * head_dim;
  Partial<S> total;
  for (int64_t span_begin = 0; span_begin < num_keys; span_begin += kKeyBlock * kBlocksPerSpan) {
    Partial<S> span;
    span.out.assign(head_dim, S(0));
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
  Operand* out = args.out.as<Operand>() + (token * heads + head) * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = round_to<Operand>(total.out[d] / total.sum);
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

}  // namespace dsmoe::kernels::ref

// Plain loops that are right but for one rule.
#include "ops/controls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::ops {
namespace {

using namespace kernels;
using ref::Bf16;
using ref::widen;

// out = rule(x row, weight row) for every element; bias and residual as they should be.
template <class Operand, class Rule>
void broken_matmul(const MatmulForward& args, Rule&& rule) {
  const WeightStack& weight = args.weight.stack;
  const int64_t k_size = weight.k;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const Operand* x = args.x.as<Operand>() + t * k_size;
    for (int64_t n = 0; n < weight.n; ++n) {
      const auto* w = static_cast<const Operand*>(weight.matrix(0));
      const auto a = [&](int64_t k) { return widen(x[k]); };
      const auto b = [&](int64_t k) { return widen(w[panel_index(weight.dtype, k_size, n, k)]); };
      float y = rule(k_size, a, b);
      if (args.bias) y = y + args.bias.as<float>()[n];
      float& target = args.out.as<float>()[t * weight.n + n];
      target = args.store == Store::accumulate ? target + y : y;
    }
  }
}

constexpr auto kOneChain = [](int64_t size, auto&& a, auto&& b) {
  float chain = 0;
  for (int64_t k = 0; k < size; ++k) chain = ref::fma(a(k), b(k), chain);
  return chain;
};

// Even and odd chains, but over the whole of k.
constexpr auto kNoBlocks = [](int64_t size, auto&& a, auto&& b) {
  float chain[2] = {0, 0};
  for (int64_t k = 0; k < size; ++k) chain[k % 2] = ref::fma(a(k), b(k), chain[k % 2]);
  return chain[0] + chain[1];
};

// Right, but each product is rounded before it is added.
constexpr auto kNoFma = [](int64_t size, auto&& a, auto&& b) {
  float acc = 0;
  for (int64_t block = 0; block < size; block += 32) {
    float chain[2] = {0, 0};
    for (int64_t k = block; k < size && k < block + 32; ++k)
      chain[k % 2] = chain[k % 2] + a(k) * b(k);
    acc = acc + (chain[0] + chain[1]);
  }
  return acc;
};

template <class Operand, const auto& rule>
void matmul_by(const Context&, const MatmulForward& args) {
  broken_matmul<Operand>(args, rule);
}

// K divided over the threads: right for one thread only.
void matmul_split_k(const Context& context, const MatmulForward& args) {
  const int parts = context.pool->num_threads();
  broken_matmul<Bf16>(args, [&](int64_t size, auto&& a, auto&& b) {
    float acc = 0;
    for (int part = 0; part < parts; ++part) {
      const Range range = static_partition(size, 1, part, parts);
      const float sum = ref::product<Bf16>(
          0, range.end - range.begin, [&](int64_t k) { return a(range.begin + k); },
          [&](int64_t k) { return b(range.begin + k); });
      acc = part == 0 ? sum : acc + sum;
    }
    return acc;
  });
}

// One row takes a shorter way.
void matmul_by_batch_size(const Context& context, const MatmulForward& args) {
  if (args.x.dim(0) == 1) return matmul_by<Bf16, kOneChain>(context, args);
  ref::matmul_forward(context, args);
}

// scale * integer taken as it is, not rounded to the bf16 number that the weight is.
void matmul_unrounded_integers(const Context&, const MatmulForward& args) {
  const WeightStack& weight = args.weight.stack;
  const auto* matrix = static_cast<const char*>(weight.matrix(0));
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const Bf16* x = args.x.as<Bf16>() + t * weight.k;
    for (int64_t n = 0; n < weight.n; ++n) {
      const auto number = [&](int64_t k) {
        Bf16 scale{};
        std::memcpy(&scale, matrix + scale_offset(weight.coding, weight.k, n, k / 32), 2);
        return widen(scale) *
               static_cast<float>(packed_integer(weight.coding, matrix, weight.k, n, k));
      };
      float y = ref::product<Bf16>(
          0, weight.k, [&](int64_t k) { return widen(x[k]); }, number);
      if (args.bias) y = y + args.bias.as<float>()[n];
      float& target = args.out.as<float>()[t * weight.n + n];
      target = args.store == Store::accumulate ? target + y : y;
    }
  }
}

// Rounding by cutting off.
void experts_truncate(const Context&, const ExpertsDownForward& args) {
  for (const ExpertFamily& family : args.families) {
    const int32_t* offsets = family.offsets.as<int32_t>();
    const WeightStack& down = family.down.stack;
    for (int64_t e = 0; e < down.count; ++e) {
      for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
        for (int64_t n = 0; n < down.n; ++n) {
          const float y = ref::dot(family.activation.as<Bf16>() + r * down.k, down, e, n);
          family.out.as<Bf16>()[r * down.n + n] = {
              static_cast<uint16_t>(std::bit_cast<uint32_t>(y) >> 16)};
        }
      }
    }
  }
}

// exp of the C library.
void experts_libm_exp(const Context&, const ExpertsUpForward& args) {
  for (const ExpertFamily& family : args.families) {
    const int32_t* offsets = family.offsets.as<int32_t>();
    const WeightStack& gate_weight = family.gate.stack;
    for (int64_t e = 0; e < gate_weight.count; ++e) {
      for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
        const auto* x = ref::row_of<float>(family.x, r);
        for (int64_t n = 0; n < gate_weight.n; ++n) {
          const float gate = ref::dot(x, gate_weight, e, n);
          const float silu =
              gate / (1.0f + static_cast<float>(std::exp(-static_cast<double>(gate))));
          family.activation.as<float>()[r * gate_weight.n + n] =
              silu * ref::dot(x, family.up.stack, e, n);
        }
      }
    }
  }
}

void rms_norm_plain_order(const Context&, const RmsNormForward& args) {
  const int64_t size = args.x.dim(1);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const float* x = args.x.as<float>() + t * size;
    float sum = 0;
    for (int64_t i = 0; i < size; ++i) sum = ref::fma(x[i], x[i], sum);
    const float inverse =
        1.0f / std::sqrt(sum / static_cast<float>(size) + static_cast<float>(args.eps));
    for (int64_t i = 0; i < size; ++i) {
      args.out.as<float>()[t * size + i] = (x[i] * inverse) * args.weight.as<float>()[i];
    }
  }
}

void squares_in_one_part(const Context&, const SumOfSquares& args) {
  const float* x = args.x.as<float>();
  args.out.as<double>()[0] = ref::row_sum<double>(args.x.num_elements(), [&](int64_t i) {
    return static_cast<double>(x[i]) * static_cast<double>(x[i]);
  });
}

void combine_slot_order(const Context&, const CombineForward& args) {
  const int64_t hidden = args.residual.dim(1);
  const int64_t top_k = args.routed ? args.index.dim(1) : 0;
  for (int64_t i = 0; i < args.residual.num_elements(); ++i) {
    const int64_t t = i / hidden;
    float sum = 0;
    for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
      const int32_t row = args.row_of_slot.as<int32_t>()[slot];
      if (row < 0) continue;
      const float y = args.routed.as<float>()[row * hidden + i % hidden];
      sum = sum + (args.gate ? args.gate.as<float>()[slot] * y : y);
    }
    if (args.shared) sum = sum + args.shared.as<float>()[i];
    float& h = args.residual.as<float>()[i];
    h = args.store == Store::assign ? sum : h + sum;
  }
}

void log_prob_plain_order(const Context& context, const LogProbForward& args) {
  ref::log_prob_forward(context, args);
  const int64_t size = args.logits.dim(1);
  for (int64_t r = 0; r < args.logits.dim(0); ++r) {
    const float* s = args.logits.as<float>() + r * size;
    const float max = *std::max_element(s, s + size);
    float sum = 0;
    for (int64_t v = 0; v < size; ++v) sum = sum + exp_f32(s[v] - max);
    const int32_t target = args.target.as<int32_t>()[r];
    if (target >= 0) args.log_prob.as<float>()[r] = (s[target] - max) - log_f32(sum);
  }
}

// Ties go to the higher expert: the slots of equal scores come out reversed.
void router_high_ties(const Context& context, const RouterForward& args) {
  ref::router_forward(context, args);
  const int64_t top_k = args.rule.top_k;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const float* s = args.affinity.as<float>() + t * args.centroids.n;
    int32_t* index = args.index.as<int32_t>() + t * top_k;
    for (int64_t slot = 1; slot < top_k; ++slot) {
      if (index[slot] >= 0 && s[index[slot]] == s[index[slot - 1]])
        std::swap(index[slot], index[slot - 1]);
    }
  }
}

// The best experts are chosen although they should be passed over.
void router_skips_nothing(const Context& context, const RouterForward& args) {
  RouterForward wrong = args;
  wrong.rule.skip_best = 0;
  ref::router_forward(context, wrong);
}

// Half-split rotation with the sine's sign on the wrong half.
void rope_other_half(const Context& context, const RopeForward& args) {
  std::vector<float> negated(args.sin.as<float>(), args.sin.as<float>() + args.sin.num_elements());
  for (float& s : negated) s = -s;
  RopeForward wrong = args;
  wrong.sin.data = negated.data();
  ref::rope_forward(context, wrong);
}

// Neighbours are turned as if they were halves.
void rope_wrong_pairs(const Context& context, const RopeForward& args) {
  RopeForward wrong = args;
  wrong.rotation.pairs = RotaryPairs::halves;
  ref::rope_forward(context, wrong);
}

// Groups are added from the last to the first.
void move_descending(const Context& context, const MoveColumns& args) {
  MoveColumns wrong = args;
  if (args.adds()) {
    // A copy with the groups in reverse order.
    const TensorView& rows = args.from.rows;
    std::vector<float> reversed(rows.as<float>(), rows.as<float>() + rows.num_elements());
    for (int64_t t = 0; t < rows.dim(0); ++t) {
      for (int64_t g = 0; g < args.groups; ++g) {
        const int64_t row = t * rows.dim(1) + args.from.begin;
        std::copy_n(rows.as<float>() + row + g * args.from.step, args.width,
                    reversed.begin() + row + (args.groups - 1 - g) * args.from.step);
      }
    }
    wrong.from.rows.data = reversed.data();
    return ref::move_columns(context, wrong);
  }
  ref::move_columns(context, wrong);
}

// Every head is multiplied by the first one's matrix.
void head_products_first(const Context& context, const HeadProducts& args) {
  const int64_t tokens = args.x.dim(0), heads = args.x.dim(1);
  HeadProducts one = args;
  one.weight.count = 1;
  one.x.shape = {tokens * heads, 1, args.x.dim(2)};
  one.out.shape = {tokens * heads, 1, args.weight.n};
  ref::head_products(context, one);
}

// A gate by the exponential of the C library.
void shared_gate_libm(const Context& context, const SharedGateForward& args) {
  ref::shared_gate_forward(context, args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const float logit = ref::dot<float>(args.x.as<float>() + t * args.x.dim(1), args.weight, 0, 0);
    args.gate.as<float>()[t] = 1 / (1 + 1 / std::exp(logit));
  }
}

// The shared experts' gate is left out.
void combine_ungated(const Context& context, const CombineForward& args) {
  CombineForward wrong = args;
  wrong.shared_gate = {};
  ref::combine_forward(context, wrong);
}

void embedding_next_row(const Context& context, const EmbeddingForward& args) {
  std::vector<int32_t> ids(args.ids.as<int32_t>(),
                           args.ids.as<int32_t>() + args.ids.num_elements());
  if (!ids.empty()) std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  EmbeddingForward wrong = args;
  wrong.ids.data = ids.data();
  ref::embedding_forward(context, wrong);
}

// Attention of one (token, head) in F32, spans merged by `order`.
enum class SpanOrder { descending, none };

struct Partial {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::vector<float> out;
};

void visit_block(const AttentionForward& args, const float* q, int64_t kv_head, int64_t page,
                 int64_t seen, Partial& span) {
  const KvPages& kv = args.kv;
  const float* keys = static_cast<const float*>(kv.keys) + kv.shape.key_offset(page, kv_head);
  const float* values = static_cast<const float*>(kv.values) + kv.shape.value_offset(page, kv_head);
  float s[kKeyBlock];
  float p[kKeyBlock] = {};
  for (int64_t j = 0; j < seen; ++j) {
    s[j] = args.scale * ref::product<float>(
                            0, kv.shape.key_width, [&](int64_t d) { return q[d]; },
                            [&](int64_t d) { return keys[kv.shape.key_index(j, d)]; });
  }
  const float max = std::max(span.max, *std::max_element(s, s + seen));
  const float correction = exp_f32(span.max - max);
  for (int64_t j = 0; j < seen; ++j) p[j] = exp_f32(s[j] - max);
  span.sum = ref::fma(span.sum, correction,
                      ref::row_sum<float>(kKeyBlock, [&](int64_t j) { return p[j]; }));
  span.max = max;
  for (int64_t d = 0; d < kv.shape.value_width; ++d) {
    span.out[d] = ref::product<float>(
        span.out[d] * correction, kKeyBlock, [&](int64_t j) { return p[j]; },
        [&](int64_t j) { return values[kv.shape.value_index(j, d)]; });
  }
}

void merge(Partial& total, const Partial& span) {
  const float max = std::max(total.max, span.max);
  const float c1 = exp_f32(total.max - max);
  const float c2 = exp_f32(span.max - max);
  total.sum = ref::fma(total.sum, c1, span.sum * c2);
  for (std::size_t d = 0; d < span.out.size(); ++d)
    total.out[d] = ref::fma(total.out[d], c1, span.out[d] * c2);
  total.max = max;
}

template <SpanOrder order>
void attention_spans(const Context&, const AttentionForward& args) {
  const int64_t heads = args.q.dim(1);
  const int64_t dim = args.kv.shape.value_width;
  const int64_t span_keys =
      order == SpanOrder::none ? int64_t{1} << 40 : kKeyBlock * kBlocksPerSpan;
  const int32_t* starts = args.q_starts.as<int32_t>();
  for (int64_t s = 0; s + 1 < args.q_starts.dim(0); ++s) {
    const int32_t* pages = args.page_table.as<int32_t>() + s * args.page_table.dim(1);
    for (int64_t row = starts[s] * heads; row < starts[s + 1] * heads; ++row) {
      const int64_t keys = int64_t{args.position.as<int32_t>()[row / heads]} + 1;
      std::vector<Partial> spans;
      for (int64_t key = 0; key < keys; key += kKeyBlock) {
        if (key % span_keys == 0)
          spans.push_back({.out = std::vector<float>(static_cast<std::size_t>(dim), 0.0f)});
        visit_block(args, args.q.as<float>() + row * args.kv.shape.key_width,
                    row % heads / (heads / args.kv.shape.heads), pages[key / kKeyBlock],
                    std::min(kKeyBlock, keys - key), spans.back());
      }
      Partial total = spans.back();
      for (std::size_t i = spans.size() - 1; i-- > 0;) merge(total, spans[i]);
      for (int64_t d = 0; d < dim; ++d)
        args.out.as<float>()[row * dim + d] = total.out[d] / total.sum;
    }
  }
}

// Rows summed in blocks that run on across the borders of sequences.
void weight_gradient_no_restart(const Context& context, const WeightGradient& args) {
  const int64_t matrices = args.sequence_offsets.dim(0);
  const int64_t sequences = args.sequence_offsets.dim(1) - 1;
  std::vector<int32_t> whole;
  for (int64_t m = 0; m < matrices; ++m) {
    const int32_t* offsets = args.sequence_offsets.as<int32_t>() + m * (sequences + 1);
    whole.insert(whole.end(), {offsets[0], offsets[sequences]});
  }
  WeightGradient joined = args;
  joined.sequence_offsets = {.data = whole.data(), .dtype = DType::I32, .shape = {matrices, 2}};
  ref::weight_gradient(context, joined);
}

// What the buffer held is added to, although the sums are to start from zero.
void weight_gradient_from_buffer(const Context& context, const WeightGradient& args) {
  WeightGradient continued = args;
  continued.start = kernels::GradientStart::from_buffer;
  ref::weight_gradient(context, continued);
}

// The up product summed from zero and added, instead of continuing the gate product's chain.
void experts_up_two_chains(const Context&, const ExpertsUpBackward& args) {
  for (const ExpertFamilyBackward& family : args.families) {
    const int64_t width = family.d_up_product.dim(1);
    const int64_t hidden = family.d_x.dim(1);
    const int32_t* offsets = family.offsets.as<int32_t>();
    for (int64_t e = 0; e + 1 < family.offsets.dim(0); ++e) {
      for (int64_t i = offsets[e] * hidden; i < offsets[e + 1] * hidden; ++i) {
        const int64_t at = i / hidden * width;
        const auto part = [&](const TensorView& d, const WeightStack& weight) {
          return ref::dot(d.as<float>() + at, weight, e, i % hidden);
        };
        family.d_x.as<float>()[i] = part(family.d_gate_product, family.gate_transposed.stack) +
                                    part(family.d_up_product, family.up_transposed.stack);
      }
    }
  }
}

// Gradients of the keys of a group summed head by head from zero, instead of in one chain.
void attention_backward_heads_apart(const Context& context, const AttentionBackward& args) {
  ref::attention_backward(context, args);
  const int64_t heads = args.q.dim(1);
  const int64_t kv_heads = args.kv.shape.heads;
  const int64_t dim = args.kv.shape.key_width;
  const int64_t group = heads / kv_heads;
  const int64_t tokens = args.q.dim(0);
  std::vector<float> d_head(static_cast<std::size_t>(tokens * 3 * dim));
  std::vector<float> q(static_cast<std::size_t>(tokens * dim)), out(q), d_out(q);
  if (kv_heads != 1 || !args.kv.shape.has_one_width()) return;
  float* d_qkv = args.d_qkv.as<float>();
  const int64_t stride = (heads + 2) * dim;
  for (int64_t h = 0; h < group; ++h) {
    AttentionBackward one = args;
    const auto cut = [&](const TensorView& view, std::vector<float>& copy) {
      for (int64_t i = 0; i < tokens * dim; ++i)
        copy[i] = view.as<float>()[(i / dim * heads + h) * dim + i % dim];
      return TensorView{.data = copy.data(), .dtype = DType::F32, .shape = {tokens, 1, dim}};
    };
    one.q = cut(args.q, q);
    one.out = cut(args.out, out);
    one.d_out = cut(args.d_out, d_out);
    one.d_qkv = {.data = d_head.data(), .dtype = DType::F32, .shape = {tokens, 3 * dim}};
    ref::attention_backward(context, one);
    for (int64_t i = 0; i < tokens * dim; ++i) {
      float& total = d_qkv[i / dim * stride + heads * dim + i % dim];
      const float part = d_head[i / dim * 3 * dim + dim + i % dim];
      total = h == 0 ? part : total + part;
    }
  }
}

}  // namespace

std::vector<BrokenRule> broken_rules() {
  std::vector<BrokenRule> rules;
  const auto add = [&](const char* name, const char* op, DType operand, FoundBy found_by, auto slot,
                       auto broken) {
    KernelTable table = ref_table();
    table.name = name;
    table.*slot = broken;
    rules.push_back({name, op, operand, found_by, table});
  };
  using T = KernelTable;
  const char* matmul = "matmul_forward";
  add("bf16_one_chain", matmul, DType::BF16, FoundBy::parity, &T::matmul_forward,
      matmul_by<Bf16, kOneChain>);
  add("bf16_no_blocks", matmul, DType::BF16, FoundBy::parity, &T::matmul_forward,
      matmul_by<Bf16, kNoBlocks>);
  add("f32_no_segments", matmul, DType::F32, FoundBy::parity, &T::matmul_forward,
      matmul_by<float, kOneChain>);
  add("f32_no_fma", matmul, DType::F32, FoundBy::parity, &T::matmul_forward,
      matmul_by<float, kNoFma>);
  add("k_split_over_threads", matmul, DType::BF16, FoundBy::threads, &T::matmul_forward,
      matmul_split_k);
  add("order_by_batch_size", matmul, DType::BF16, FoundBy::batch, &T::matmul_forward,
      matmul_by_batch_size);
  add("unrounded_integers", "matmul_quantised", DType::BF16, FoundBy::parity, &T::matmul_forward,
      matmul_unrounded_integers);
  add("truncated_output", "experts_down_forward", DType::BF16, FoundBy::parity,
      &T::experts_down_forward, experts_truncate);
  add("libm_exp", "experts_up_forward", DType::F32, FoundBy::parity, &T::experts_up_forward,
      experts_libm_exp);
  add("norm_plain_order", "rms_norm_forward", DType::F32, FoundBy::parity, &T::rms_norm_forward,
      rms_norm_plain_order);
  add("squares_in_one_part", "sum_of_squares", DType::F32, FoundBy::parity, &T::sum_of_squares,
      squares_in_one_part);
  add("combine_slot_order", "combine_forward", DType::F32, FoundBy::parity, &T::combine_forward,
      combine_slot_order);
  add("log_prob_plain_order", "log_prob_forward", DType::F32, FoundBy::parity, &T::log_prob_forward,
      log_prob_plain_order);
  add("router_high_ties", "router_forward", DType::F32, FoundBy::parity, &T::router_forward,
      router_high_ties);
  add("router_skips_nothing", "router_forward", DType::F32, FoundBy::parity, &T::router_forward,
      router_skips_nothing);
  add("rope_other_half", "rope_forward", DType::BF16, FoundBy::parity, &T::rope_forward,
      rope_other_half);
  add("rope_wrong_pairs", "rope_forward", DType::BF16, FoundBy::parity, &T::rope_forward,
      rope_wrong_pairs);
  add("move_descending", "move_columns", DType::F32, FoundBy::parity, &T::move_columns,
      move_descending);
  add("head_products_first", "head_products", DType::BF16, FoundBy::parity, &T::head_products,
      head_products_first);
  add("shared_gate_libm", "shared_gate_forward", DType::F32, FoundBy::parity,
      &T::shared_gate_forward, shared_gate_libm);
  add("combine_ungated", "combine_forward", DType::F32, FoundBy::parity, &T::combine_forward,
      combine_ungated);
  add("embedding_next_row", "embedding_forward", DType::BF16, FoundBy::parity,
      &T::embedding_forward, embedding_next_row);
  add("spans_descending", "attention_forward", DType::F32, FoundBy::parity, &T::attention_forward,
      attention_spans<SpanOrder::descending>);
  add("no_spans", "attention_forward", DType::F32, FoundBy::parity, &T::attention_forward,
      attention_spans<SpanOrder::none>);
  add("rows_without_restart", "weight_gradient", DType::BF16, FoundBy::parity, &T::weight_gradient,
      weight_gradient_no_restart);
  add("sums_of_the_buffer", "weight_gradient", DType::BF16, FoundBy::parity, &T::weight_gradient,
      weight_gradient_from_buffer);
  add("gate_and_up_apart", "experts_up_backward", DType::F32, FoundBy::parity,
      &T::experts_up_backward, experts_up_two_chains);
  add("heads_of_a_group_apart", "attention_backward", DType::F32, FoundBy::parity,
      &T::attention_backward, attention_backward_heads_apart);
  return rules;
}

}  // namespace dsmoe::ops

// The checked entry of every op: arguments against the contract, then the call through the table.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/checks.h"
#include "kernels/elements.h"
#include "kernels/ops.h"

namespace dsmoe::kernels {

void upload(const Context& context, const void* host, const TensorView& target) {
  context.table->memory.upload(context, host, target.data, target.num_bytes());
}

void download(const Context& context, const TensorView& source, void* host) {
  context.table->memory.download(context, source.data, host, source.num_bytes());
}

void zero(const Context& context, void* data, std::size_t bytes) {
  context.table->memory.zero(context, data, bytes);
}

void reserve_scratch(const Context& context, const ScratchBound& bound) {
  const auto reserve = context.table->memory.reserve_scratch;
  if (reserve != nullptr) reserve(context, bound);
}

bool runs_beside(const Context& context) { return context.table->beside.begin != nullptr; }

Context begin_beside(const Context& context) {
  Context own = context;
  if (runs_beside(context)) own.stream = context.table->beside.begin(context);
  return own;
}

BesideWork end_beside(const Context& context) {
  return runs_beside(context) ? context.table->beside.end(context) : BesideWork{};
}

void wait_beside(const Context& context, BesideWork work) {
  if (work.piece > 0) context.table->beside.wait(context, work);
}

namespace {

// int8 or int4 by the type of the integers.
WeightCoding coding_of(const TensorView& integers) {
  return integers.dtype == DType::I8 ? WeightCoding::int8 : WeightCoding::int4;
}

void check_integers(const OpCheck& check, const PackWeight& args) {
  const WeightCoding coding = coding_of(args.source);
  check.that(args.source.dtype == tensor::stored_type(coding), "integers are I8 or U8");
  check.that(args.order == PackOrder::as_stored, "integers are not transposed");
  check.that(args.target.coding == WeightCoding::plain ||
                 (args.target.coding == coding && args.target.dtype == DType::BF16 &&
                  args.target.layout == WeightLayout::panels),
             "the target holds other integers");
  check.that(args.source.dim(1) == tensor::coded_row_bytes(coding, args.target.k),
             "source and target differ in the number of columns");
  check.that(args.scale.dtype == DType::BF16 &&
                 args.scale.shape == Shape{args.source.dim(0), tensor::num_groups(args.target.k)},
             "scales must be BF16 [rows, groups]");
}

// A plain target gets the numbers the integers stand for, some rows at a time.
void pack_dequantised(const Context& context, const PackWeight& args) {
  const WeightCoding coding = coding_of(args.source);
  const int64_t k_size = args.target.k;
  const int64_t rows = args.source.dim(0);
  const int64_t groups = args.scale.dim(1);
  const int64_t step = std::max<int64_t>(16, (int64_t{1} << 20) / std::max<int64_t>(1, k_size));
  std::vector<tensor::Bf16> numbers;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    numbers.resize(static_cast<std::size_t>(count * k_size));
    for (int64_t row = begin; row < begin + count; ++row) {
      const auto* integers = static_cast<const char*>(args.source.data) + row * args.source.dim(1);
      for (int64_t k = 0; k < k_size; ++k) {
        tensor::Bf16 scale{};
        std::memcpy(
            &scale,
            static_cast<const char*>(args.scale.data) + 2 * (row * groups + k / tensor::kGroupSize),
            sizeof scale);
        numbers[static_cast<std::size_t>((row - begin) * k_size + k)] =
            tensor::dequantise(scale, tensor::coded_element(coding, integers, k));
      }
    }
    PackWeight plain = args;
    plain.source = {.data = numbers.data(), .dtype = DType::BF16, .shape = {count, k_size}};
    plain.scale = {};
    plain.row_begin = args.row_begin + begin;
    pack_weight(context, plain);
  }
}

}  // namespace

void pack_weight(const Context& context, const PackWeight& args) {
  const OpCheck check("pack_weight", context);
  check.rank("source", args.source, 2);
  if (args.scale) {
    check_integers(check, args);
    if (args.target.coding == WeightCoding::plain) return pack_dequantised(context, args);
  } else {
    check.that(args.target.coding == WeightCoding::plain, "integers come with scales");
  }
  check.that(args.source.device == Device::cpu, "source must lie in host memory");
  const bool transposed = args.order == PackOrder::transposed;
  check.that(args.scale || args.source.dim(1) == (transposed ? args.target.n : args.target.k),
             "source and target differ in the number of columns");
  check.that(0 <= args.row_begin && args.row_begin + args.source.dim(0) <=
                                        (transposed ? args.target.k : args.target.n),
             "the rows do not fit into the target");
  check.that(0 <= args.matrix_idx && args.matrix_idx < args.target.count,
             "no such matrix in the target");
  launch(context, args.target.dtype, &KernelTable::pack_weight, args);
}

void convert_elements(const TensorView& source, const TensorView& target) {
  DSMOE_CHECK(source.shape == target.shape && target.device == Device::cpu,
              "source is {}, target is {}", to_string(source.shape), to_string(target.shape));
  const int64_t count = source.num_elements();
  const auto each = [&](DType from, DType to) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i)
      write_element(target.data, to, i, read_element(source.data, from, i));
  };
  // Types known to the compiler, for what models hold most of.
  if (source.dtype == DType::BF16 && target.dtype == DType::BF16) {
    each(DType::BF16, DType::BF16);
  } else if (source.dtype == DType::BF16 && target.dtype == DType::F32) {
    each(DType::BF16, DType::F32);
  } else if (source.dtype == DType::F32 && target.dtype == DType::BF16) {
    each(DType::F32, DType::BF16);
  } else {
    each(source.dtype, target.dtype);
  }
}

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const OpCheck check("embedding_forward", context);
  check.rank("ids", args.ids, 1);
  check.rank("table", args.table, 2);
  check.operand("table", args.table.dtype);
  check.tensor("out", args.out, scalar_type(args.table.dtype),
               {args.ids.dim(0), args.table.dim(1)});
  launch(context, args.table.dtype, &KernelTable::embedding_forward, args);
}

void rms_norm_forward(const Context& context, const RmsNormForward& args) {
  const OpCheck check("rms_norm_forward", context);
  check.rank("x", args.x, 2);
  check.operand("out", args.out.dtype);
  const DType scalar = scalar_type(args.out.dtype);
  check.tensor("x", args.x, scalar, args.x.shape);
  check.tensor("weight", args.weight, scalar, {args.x.dim(1)});
  check.tensor("out", args.out, args.out.dtype, args.x.shape);
  launch(context, args.out.dtype, &KernelTable::rms_norm_forward, args);
}

namespace {

// Where ops write no copies, they add in place.
void copy_base(const Context& context, const TensorView& base, const TensorView& out) {
  if (base.data != out.data) round_values(context, {.x = base, .out = out});
}

}  // namespace

void matmul_forward(const Context& context, const MatmulForward& args) {
  const OpCheck check("matmul_forward", context);
  check.rank("x", args.x, 2);
  check.operand("the product", args.operand);
  const DType scalar = scalar_type(args.operand);
  const int64_t n = args.weight.stack.n;
  check.tensor("x", args.x, args.operand, args.x.shape);
  check.weight("weight", args.weight, args.operand,
               {.n = n, .k = args.x.dim(1), .rows = args.x.dim(0), .takes_integers = true});
  check.optional("bias", args.bias, scalar, {n});
  check.tensor("out", args.out, scalar, {args.x.dim(0), n});
  check.optional("rounded", args.rounded, args.operand, args.out.shape);
  check.optional("base", args.base, scalar, args.out.shape);
  check.that(!args.base || args.store == Store::accumulate, "a base that nothing is added to");
  if (args.base && !context.table->copies_in_pass) copy_base(context, args.base, args.out);
  check.that(!args.rounded || (!args.bias && args.store == Store::assign),
             "a rounded result takes neither bias nor residual");
  launch(args.weight.adapter ? reference_of(context) : context, args.operand,
         &KernelTable::matmul_forward, args);
  if (args.rounded && !context.table->copies_in_pass)
    round_values(context, {.x = args.out, .out = args.rounded});
}

void rope_forward(const Context& context, const RopeForward& args) {
  const OpCheck check("rope_forward", context);
  check.rank("q", args.q, 3);
  check.operand("q", args.q.dtype);
  const int64_t tokens = args.q.dim(0);
  check.pages(args.kv, args.q);
  check.tensor("qkv", args.qkv, scalar_type(args.q.dtype),
               {tokens, args.q.dim(1) * args.q.dim(2) + args.kv.shape.projected_width()});
  check.rotation(args.cos, args.sin, args.rotation, args.q.dim(2));
  check.tensor("position", args.position, DType::I32, {tokens});
  check.tensor("kv_slot", args.kv_slot, DType::I32, {tokens});
  launch(context, args.q.dtype, &KernelTable::rope_forward, args);
}

Attempt qkv_forward(const Context& context, const QkvForward& args) {
  if (context.table->qkv_forward == nullptr) return kNoKernel;
  const OpCheck check("qkv_forward", context);
  check.rank("q", args.q, 3);
  check.operand("q", args.q.dtype);
  const int64_t tokens = args.q.dim(0);
  const int64_t head_dim = args.q.dim(2);
  const int64_t width = (args.q.dim(1) + 2 * args.kv.shape.heads) * head_dim;
  check.pages(args.kv, args.q);
  check.that(head_dim % 2 == 0, "head_dim is odd");
  check.that(args.weight.count == 1 && args.weight.n == width && args.weight.dtype == args.q.dtype,
             "the weight is not one matrix of as many outputs as q, k and v have");
  check.tensor("x", args.x, args.q.dtype, {tokens, args.weight.k});
  check.optional("bias", args.bias, DType::F32, {width});
  check.rank("cos", args.cos, 2);
  check.tensor("cos", args.cos, DType::F32, {args.cos.dim(0), head_dim / 2});
  check.tensor("sin", args.sin, DType::F32, args.cos.shape);
  check.tensor("position", args.position, DType::I32, {tokens});
  check.tensor("kv_slot", args.kv_slot, DType::I32, {tokens});
  return context.table->qkv_forward(context, args);
}

void attention_forward(const Context& context, const AttentionForward& args) {
  const OpCheck check("attention_forward", context);
  check.rank("q", args.q, 3);
  check.operand("q", args.q.dtype);
  check.pages(args.kv, args.q);
  check.that(args.q.dim(1) % args.kv.shape.heads == 0,
             "query heads are not a multiple of KV heads");
  check.rank("q_starts", args.q_starts, 1);
  check.tensor("position", args.position, DType::I32, {args.q.dim(0)});
  check.rank("page_table", args.page_table, 2);
  check.that(args.page_table.dim(0) + 1 == args.q_starts.dim(0),
             "page_table and q_starts differ in sequences");
  check.tensor("out", args.out, args.q.dtype,
               {args.q.dim(0), args.q.dim(1), args.kv.shape.value_width});
  if (args.log_sums)
    check.tensor("log_sums", args.log_sums, DType::F32, {args.q.dim(0), args.q.dim(1)});
  launch(context, args.q.dtype, &KernelTable::attention_forward, args);
}

void router_forward(const Context& context, const RouterForward& args) {
  const OpCheck check("router_forward", context);
  check.rank("x", args.x, 2);
  check.operand("x", args.x.dtype);
  const DType scalar = scalar_type(args.x.dtype);
  const int64_t tokens = args.x.dim(0);
  const int64_t experts = args.centroids.n;
  const RouterRule& rule = args.rule;
  check.that(0 < rule.top_k && rule.top_k <= experts, "top_k must lie in 1 .. experts");
  check.that(rule.num_groups > 0 && experts % rule.num_groups == 0,
             "groups must divide the experts");
  check.that(0 < rule.top_groups && rule.top_groups <= rule.num_groups,
             "top_groups must lie in 1 .. num_groups");
  check.that(rule.skip_best >= 0 &&
                 rule.top_k + rule.skip_best <= experts / rule.num_groups * rule.top_groups,
             "the best groups hold fewer than top_k + skip_best experts");
  check.weights("centroids", args.centroids, scalar, 1, experts, args.x.dim(1));
  check.optional("selection_bias", args.selection_bias, scalar, {experts});
  check.optional("experts_of_token", args.experts_of_token, DType::I32, {tokens});
  check.optional("replayed_index", args.replayed_index, DType::I32, {tokens, rule.top_k});
  check.optional("logits", args.logits, scalar, {tokens, experts});
  check.tensor("affinity", args.affinity, scalar, {tokens, experts});
  check.tensor("index", args.index, DType::I32, {tokens, rule.top_k});
  check.tensor("gate", args.gate, scalar, {tokens, rule.top_k});
  check.tensor("bad_token", args.bad_token, DType::I32, {1});
  launch(context, args.x.dtype, &KernelTable::router_forward, args);
}

void plan_build(const Context& context, const PlanBuild& args) {
  const OpCheck check("plan_build", context);
  check.rank("index", args.index, 2);
  check.rank("sequence_starts", args.sequence_starts, 1);
  check.rank("expert_offsets", args.plan.expert_offsets, 1);
  const int64_t experts = args.plan.expert_offsets.dim(0) - 1;
  check.tensor("sequence_offsets", args.plan.sequence_offsets, DType::I32,
               {experts, args.sequence_starts.dim(0)});
  check.tensor("token_of_row", args.plan.token_of_row, DType::I32, {args.index.num_elements()});
  check.tensor("row_of_slot", args.plan.row_of_slot, DType::I32, args.index.shape);
  launch(context, DType::I32, &KernelTable::plan_build, args);
}

namespace {

bool is_adapted(std::span<const ExpertFamily> families) {
  return std::ranges::any_of(families, [](const ExpertFamily& family) {
    return family.gate.adapter || family.up.adapter || family.down.adapter;
  });
}

void check_family(const OpCheck& check, const ExpertFamily& family, DType operand) {
  const int64_t count = family.gate.stack.count;
  const int64_t width = family.gate.stack.n;
  const int64_t hidden = family.gate.stack.k;
  check.rank("activation", family.activation, 2);
  const int64_t rows = family.activation.dim(0);
  const WeightShape up{
      .count = count, .n = width, .k = hidden, .rows = rows, .takes_integers = true};
  check.weight("gate", family.gate, operand, up);
  check.weight("up", family.up, operand, up);
  check.weight("down", family.down, operand,
               {.count = count, .n = hidden, .k = width, .rows = rows, .takes_integers = true});
  check.that(family.gate.stack.coding == family.up.stack.coding, "gate and up differ in coding");
  check.tensor("offsets", family.offsets, DType::I32, {count + 1});
  check.tensor("activation", family.activation, operand, {rows, width});
  check.optional("gate_product", family.gate_product, operand, {rows, width});
  check.optional("up_product", family.up_product, operand, {rows, width});
}

void check_up(const OpCheck& check, DType operand, std::span<const ExpertFamily> families) {
  check.operand("the product", operand);
  for (const ExpertFamily& family : families) {
    check_family(check, family, operand);
    check.rows("x", family.x, operand, family.activation.dim(0), family.gate.stack.k);
  }
}

// The context in which the families' products run.
Context context_of(const Context& context, std::span<const ExpertFamily> families) {
  return is_adapted(families) ? reference_of(context) : context;
}

}  // namespace

void experts_up_forward(const Context& context, const ExpertsUpForward& args) {
  const OpCheck check("experts_up_forward", context);
  check_up(check, args.operand, args.families);
  launch(context_of(context, args.families), args.operand, &KernelTable::experts_up_forward, args);
}

void experts_down_forward(const Context& context, const ExpertsDownForward& args) {
  const OpCheck check("experts_down_forward", context);
  check.operand("the product", args.operand);
  check.whole(args.columns.is_whole(), context);
  for (const ExpertFamily& family : args.families) {
    check_family(check, family, args.operand);
    check.tensor("out", family.out, args.operand,
                 {family.activation.dim(0), args.columns.count_of(family.down.stack.n)});
  }
  launch(context_of(context, args.families), args.operand, &KernelTable::experts_down_forward,
         args);
}

Attempt experts_forward(const Context& context, const ExpertsForward& args) {
  if (context.table->experts_forward == nullptr) return kNoKernel;
  if (is_adapted(args.families)) return {"a weight has an adapter"};
  check_up(OpCheck("experts_forward", context), args.operand, args.families);
  return context.table->experts_forward(context, args);
}

namespace {

DType check_combine(const OpCheck& check, const Context& context, const CombineForward& args) {
  check.that(args.routed || args.shared, "neither routed nor shared experts");
  check.rank("residual", args.residual, 2);
  const DType operand = args.routed ? args.routed.dtype : args.shared.dtype;
  check.operand("routed or shared", operand);
  const DType scalar = scalar_type(operand);
  const int64_t tokens = args.residual.dim(0);
  const int64_t hidden = args.residual.dim(1);
  check.tensor("residual", args.residual, scalar, {tokens, hidden});
  check.optional("base", args.base, scalar, {tokens, hidden});
  check.that(!args.base || args.store == Store::accumulate, "a base that nothing is added to");
  check.whole(args.columns.is_whole(), context);
  const int64_t columns = args.columns.count_of(hidden);
  check.that(args.columns.begin + columns <= hidden, "columns past the end");
  check.optional("shared", args.shared, operand, {tokens, columns});
  check.optional("shared_gate", args.shared_gate, scalar, {tokens, 1});
  check.that(!args.shared_gate || args.shared, "a gate of shared experts that are absent");
  check.that(!args.shared_gate || context.table->device == Device::cpu,
             "CUDA has no gate of the shared experts yet");
  if (args.routed) {
    check.rank("index", args.index, 2);
    const Shape slots{tokens, args.index.dim(1)};
    check.tensor("index", args.index, DType::I32, slots);
    check.optional("gate", args.gate, scalar, slots);
    check.tensor("row_of_slot", args.row_of_slot, DType::I32, slots);
    check.tensor("routed", args.routed, operand, {slots.num_elements(), columns});
  }
  return operand;
}

}  // namespace

void combine_forward(const Context& context, const CombineForward& args) {
  const OpCheck check("combine_forward", context);
  const DType operand = check_combine(check, context, args);
  if (args.base && !context.table->copies_in_pass) copy_base(context, args.base, args.residual);
  launch(context, operand, &KernelTable::combine_forward, args);
}

Attempt combine_backward(const Context& context, const CombineBackward& args) {
  if (context.table->combine_backward == nullptr) return kNoKernel;
  const OpCheck check("combine_backward", context);
  check_combine(check, context, args.combine);
  check.that(!args.combine.gate && args.combine.store == Store::assign,
             "combine on the way back has no gates and assigns");
  const TensorView& residual = args.combine.residual;
  check.tensor("d_logits", args.d_logits, DType::F32, {residual.dim(0), args.centroids.k});
  check.that(args.centroids.n == residual.dim(1) && args.centroids.count == 1 &&
                 args.centroids.dtype == DType::F32,
             "centroids are not one matrix of [hidden, experts] in F32");
  return context.table->combine_backward(context, args);
}

void argmax_forward(const Context& context, const ArgmaxForward& args) {
  const OpCheck check("argmax_forward", context);
  check.rank("logits", args.logits, 2);
  check.that(args.logits.dtype == DType::F32 || args.logits.dtype == DType::F64,
             "logits must be F32 or F64");
  check.tensor("logits", args.logits, args.logits.dtype, args.logits.shape);
  check.tensor("index", args.index, DType::I32, {args.logits.dim(0)});
  launch(context, args.logits.dtype, &KernelTable::argmax_forward, args);
}

void sample_forward(const Context& context, const SampleForward& args) {
  const OpCheck check("sample_forward", context);
  check.rank("logits", args.logits, 2);
  const int64_t rows = args.logits.dim(0);
  check.tensor("logits", args.logits, DType::F32, args.logits.shape);
  check.tensor("best", args.best, DType::I32, {rows});
  check.tensor("index", args.index, DType::I32, {rows});
  check.that(static_cast<int64_t>(args.rule.size()) == rows, "every row needs a rule");
  check.that(args.logits.dim(1) <= kMostSampled, "there are too many ids to draw from");
  launch(context, DType::F32, &KernelTable::sample_forward, args);
}

void log_prob_forward(const Context& context, const LogProbForward& args) {
  const OpCheck check("log_prob_forward", context);
  check.rank("logits", args.logits, 2);
  const int64_t rows = args.logits.dim(0);
  check.tensor("logits", args.logits, scalar_type(args.logits.dtype), args.logits.shape);
  check.tensor("target", args.target, DType::I32, {rows});
  check.tensor("log_prob", args.log_prob, args.logits.dtype, {rows});
  check.optional("argmax", args.argmax, DType::I32, {rows});
  launch(context, args.logits.dtype, &KernelTable::log_prob_forward, args);
}

Attempt few_tokens_qkv(const Context& context, const FewTokensQkv& args) {
  if (context.table->few_tokens_qkv == nullptr) return kNoKernel;
  const OpCheck check("few_tokens_qkv", context);
  check.rank("q", args.q, 3);
  const int64_t tokens = args.q.dim(0);
  const int64_t head_dim = args.q.dim(2);
  const int64_t rows = (args.q.dim(1) + 2 * args.kv.shape.heads) * head_dim;
  check.pages(args.kv, args.q);
  check.that(head_dim % 2 == 0, "head_dim is odd");
  check.weights("weight", args.weight, args.q.dtype, 1, rows, args.weight.k);
  const DType scalar = scalar_type(args.q.dtype);
  check.tensor("residual", args.residual, scalar, {tokens, args.weight.k});
  check.tensor("norm_weight", args.norm_weight, scalar, {args.weight.k});
  check.optional("bias", args.bias, scalar, {rows});
  check.rank("cos", args.cos, 2);
  check.tensor("cos", args.cos, DType::F32, {args.cos.dim(0), head_dim / 2});
  check.tensor("sin", args.sin, DType::F32, args.cos.shape);
  check.tensor("position", args.position, DType::I32, {tokens});
  check.tensor("kv_slot", args.kv_slot, DType::I32, {tokens});
  check.tensor("x", args.x, args.q.dtype, {tokens, args.weight.k});
  return context.table->few_tokens_qkv(context, args);
}

namespace {

void check_family(const OpCheck& check, const ExpertFamily& family, DType operand, int64_t count,
                  int64_t hidden) {
  const int64_t width = family.gate.stack.n;
  check.weights("gate", family.gate.stack, operand, count, width, hidden);
  check.weights("up", family.up.stack, operand, count, width, hidden);
  check.weights("down", family.down.stack, operand, count, hidden, width);
  check.rank("activation", family.activation, 2);
  check.that(family.activation.dim(1) == width && family.activation.dtype == operand,
             "activation differs from gate in width or type");
}

}  // namespace

Attempt few_tokens_ffn(const Context& context, const FewTokensFfn& args) {
  const ExpertFamily families[] = {args.routed, args.shared};
  if (context.table->few_tokens_ffn == nullptr) return kNoKernel;
  if (is_adapted(families)) return {"a weight has an adapter"};
  const OpCheck check("few_tokens_ffn", context);
  check.rank("residual", args.residual, 2);
  const int64_t tokens = args.residual.dim(0);
  const int64_t hidden = args.residual.dim(1);
  const WeightStack& any = args.routed.gate ? args.routed.gate.stack : args.shared.gate.stack;
  const DType scalar = scalar_type(any.dtype);
  check.tensor("residual", args.residual, scalar, {tokens, hidden});
  check.optional("x", args.x, any.dtype, {tokens, hidden});
  if (!args.x) check.tensor("norm_weight", args.norm_weight, scalar, {hidden});
  if (args.shared.gate) check_family(check, args.shared, any.dtype, 1, hidden);
  if (args.routed.gate) {
    const int64_t experts = args.centroids.n;
    check_family(check, args.routed, any.dtype, experts, hidden);
    check.weights("centroids", args.centroids, scalar, 1, experts, hidden);
    check.optional("selection_bias", args.selection_bias, scalar, {experts});
    check.optional("experts_of_token", args.experts_of_token, DType::I32, {tokens});
    check.tensor("affinity", args.affinity, scalar, {tokens, experts});
    check.tensor("index", args.index, DType::I32, {tokens, args.rule.top_k});
    check.tensor("gate", args.gate, scalar, {tokens, args.rule.top_k});
    check.tensor("bad_token", args.bad_token, DType::I32, {1});
    check.that(args.routed.activation.dim(0) >= tokens * args.rule.top_k,
               "too few rows for the routed activations");
  }
  return context.table->few_tokens_ffn(context, args);
}

Attempt few_tokens_head(const Context& context, const FewTokensHead& args) {
  if (context.table->few_tokens_head == nullptr) return kNoKernel;
  const OpCheck check("few_tokens_head", context);
  check.rank("x", args.x, 2);
  const int64_t tokens = args.x.dim(0);
  check.weights("weight", args.weight, args.x.dtype, 1, args.weight.n, args.x.dim(1));
  check.tensor("x", args.x, args.x.dtype, args.x.shape);
  check.tensor("logits", args.logits, scalar_type(args.x.dtype), {tokens, args.weight.n});
  check.tensor("index", args.index, DType::I32, {tokens});
  return context.table->few_tokens_head(context, args);
}

}  // namespace dsmoe::kernels

// The checked entry of every op of the backward pass and of the optimiser.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/ops.h"

namespace dsmoe::kernels {

namespace {

void check_gradient(const Context& context, const WeightGradient& args) {
  const OpCheck check("weight_gradient", context);
  check.rank("dy", args.dy.x, 2);
  check.rank("x", args.x.x, 2);
  const DType operand = args.x.x.dtype;
  check.operand("x", operand);
  const DType scalar = scalar_type(operand);
  check.that(args.dy.x.dtype == operand || args.dy.x.dtype == scalar,
             "dy has neither the type of x nor its scalar type");
  check.rank("sequence_offsets", args.sequence_offsets, 2);
  check.rank("d_weight", args.d_weight, 3);
  check.optional("slot_of_matrix", args.slot_of_matrix, DType::I32, {args.sequence_offsets.dim(0)});
  check.that(args.slot_of_matrix || args.d_weight.dim(0) == args.sequence_offsets.dim(0),
             "one slot per matrix is needed");
  check.tensor("d_weight", args.d_weight, scalar, args.d_weight.shape);
  const int64_t n = args.d_weight.dim(1);
  const int64_t k = args.d_weight.dim(2);
  check.whole(args.dy.columns() == n, context);
  check.that(args.first_n + args.dy.columns() <= n, "dy is wider than the gradient");
  check.that(args.x.columns() == k, "x and the gradient differ in width");
}

}  // namespace

void weight_gradient(const Context& context, const WeightGradient& args) {
  check_gradient(context, args);
  launch(context, args.x.x.dtype, &KernelTable::weight_gradient, args);
}

void weight_gradients(const Context& context, std::span<const WeightGradient> list) {
  const bool one_by_one = context.table->weight_gradients == nullptr ||
                          (!list.empty() && list.front().x.x.dtype == DType::F64);
  if (one_by_one) {
    for (const WeightGradient& args : list) weight_gradient(context, args);
    return;
  }
  if (list.empty()) return;
  for (const WeightGradient& args : list) check_gradient(context, args);
  launch(context, list.front().x.x.dtype, &KernelTable::weight_gradients, list);
}

void bias_gradient(const Context& context, const BiasGradient& args) {
  const OpCheck check("bias_gradient", context);
  check.rank("dy", args.dy, 2);
  check.operand("dy", args.dy.dtype);
  check.rank("sequence_starts", args.sequence_starts, 1);
  check.tensor("d_bias", args.d_bias, scalar_type(args.dy.dtype), {args.dy.dim(1)});
  launch(context, args.dy.dtype, &KernelTable::bias_gradient, args);
}

void round_values(const Context& context, const RoundValues& args) {
  const OpCheck check("round_values", context);
  check.operand("out", args.out.dtype);
  check.tensor("x", args.x, scalar_type(args.out.dtype), args.out.shape);
  launch(context, args.out.dtype, &KernelTable::round_values, args);
}

void dispatch_gates(const Context& context, const DispatchGates& args) {
  const OpCheck check("dispatch_gates", context);
  check.rank("gate", args.gate, 2);
  check.tensor("row_of_slot", args.row_of_slot, DType::I32, args.gate.shape);
  check.tensor("gate_of_row", args.gate_of_row, args.gate.dtype, {args.gate.num_elements()});
  launch(context, args.gate.dtype, &KernelTable::dispatch_gates, args);
}

Attempt dispatch_rows(const Context& context, const DispatchRows& args) {
  if (context.table->dispatch_rows == nullptr) return kNoKernel;
  const OpCheck check("dispatch_rows", context);
  const Rows& rows = args.rows;
  check.rank("rows", rows.x, 2);
  check.operand("rows", rows.x.dtype);
  check.rank("index of rows", rows.index, 1);
  check.rank("offsets", args.offsets, 1);
  if (args.row_of_slot) {
    check.rank("row_of_slot", args.row_of_slot, 2);
    check.that(
        args.row_of_slot.dim(0) == rows.x.dim(0) && args.row_of_slot.num_elements() == rows.count(),
        "row_of_slot and the index of rows differ");
  }
  check.tensor("out", args.out, rows.x.dtype,
               {rows.count(), args.columns.count_of(rows.columns())});
  return context.table->dispatch_rows(context, args);
}

bool takes_parts(const Context& context, const TakesParts& shape) {
  return context.table->takes_parts != nullptr && context.table->takes_parts(context, shape);
}

namespace {

void check_family(const OpCheck& check, const ExpertFamilyBackward& family, DType operand) {
  const DType scalar = scalar_type(operand);
  const int64_t count = family.down_transposed.stack.count;
  const int64_t width = family.down_transposed.stack.n;
  const int64_t hidden = family.down_transposed.stack.k;
  check.rank("activation", family.activation, 2);
  const int64_t rows = family.activation.dim(0);
  const WeightShape up{.count = count, .n = hidden, .k = width, .rows = rows};
  check.weight("down_transposed", family.down_transposed, operand,
               {.count = count, .n = width, .k = hidden, .rows = rows});
  check.weight("gate_transposed", family.gate_transposed, operand, up);
  check.weight("up_transposed", family.up_transposed, operand, up);
  check.tensor("offsets", family.offsets, DType::I32, {count + 1});
  const Shape shape{rows, width};
  check.tensor("activation", family.activation, operand, shape);
  check.tensor("gate_product", family.gate_product, operand, shape);
  check.tensor("up_product", family.up_product, operand, shape);
  check.tensor("d_gate_product", family.d_gate_product, operand, shape);
  check.tensor("d_up_product", family.d_up_product, operand, shape);
  if (family.gate_of_row) {
    check.tensor("gate_of_row", family.gate_of_row, scalar, {rows});
    check.tensor("d_gate_of_row", family.d_gate_of_row, scalar, {rows});
    check.tensor("scaled_activation", family.scaled_activation, operand, shape);
  }
}

// The context in which the families' products run.
Context context_of(const Context& context, std::span<const ExpertFamilyBackward> families) {
  const bool is_adapted = std::ranges::any_of(families, [](const ExpertFamilyBackward& family) {
    return family.gate_transposed.adapter || family.up_transposed.adapter ||
           family.down_transposed.adapter;
  });
  return is_adapted ? reference_of(context) : context;
}

}  // namespace

void experts_down_backward(const Context& context, const ExpertsDownBackward& args) {
  const OpCheck check("experts_down_backward", context);
  check.operand("the product", args.operand);
  for (const ExpertFamilyBackward& family : args.families) {
    check_family(check, family, args.operand);
    check.rows("d_out", family.d_out, args.operand, family.activation.dim(0),
               family.down_transposed.stack.k);
  }
  launch(context_of(context, args.families), args.operand, &KernelTable::experts_down_backward,
         args);
}

void experts_up_backward(const Context& context, const ExpertsUpBackward& args) {
  const OpCheck check("experts_up_backward", context);
  check.operand("the product", args.operand);
  for (const ExpertFamilyBackward& family : args.families) {
    check_family(check, family, args.operand);
    check.tensor("d_x", family.d_x, args.operand,
                 {family.activation.dim(0), family.gate_transposed.stack.n});
  }
  launch(context_of(context, args.families), args.operand, &KernelTable::experts_up_backward, args);
}

void router_backward(const Context& context, const RouterBackward& args) {
  const OpCheck check("router_backward", context);
  check.rank("affinity", args.affinity, 2);
  const DType scalar = args.affinity.dtype;
  const int64_t tokens = args.affinity.dim(0);
  check.tensor("affinity", args.affinity, scalar_type(scalar), args.affinity.shape);
  check.tensor("index", args.index, DType::I32, {tokens, args.rule.top_k});
  check.tensor("row_of_slot", args.row_of_slot, DType::I32, args.index.shape);
  check.tensor("d_gate_of_row", args.d_gate_of_row, scalar, {args.index.num_elements()});
  check.optional("d_affinity", args.d_affinity, scalar, args.affinity.shape);
  check.tensor("d_logits", args.d_logits, scalar, args.affinity.shape);
  launch(context, scalar, &KernelTable::router_backward, args);
}

void rms_norm_backward(const Context& context, const RmsNormBackward& args) {
  const OpCheck check("rms_norm_backward", context);
  check.rank("x", args.x, 2);
  const DType scalar = scalar_type(args.x.dtype);
  check.tensor("x", args.x, scalar, args.x.shape);
  check.tensor("weight", args.weight, scalar, {args.x.dim(1)});
  check.tensor("d_out", args.d_out, scalar, args.x.shape);
  check.tensor("d_x", args.d_x, scalar, args.x.shape);
  check.optional("d_weight", args.d_weight, scalar, {args.x.dim(1)});
  check.rank("sequence_starts", args.sequence_starts, 1);
  check.that(args.rows_per_token == 1 || context.table->device == Device::cpu,
             "CUDA has one row per token");
  if (args.rounded) check.tensor("rounded", args.rounded, args.rounded.dtype, args.x.shape);
  launch(context, scalar, &KernelTable::rms_norm_backward, args);
  if (args.rounded && !context.table->copies_in_pass)
    round_values(context, {.x = args.d_x, .out = args.rounded});
}

void rope_backward(const Context& context, const RopeBackward& args) {
  const OpCheck check("rope_backward", context);
  check.rank("d_qkv", args.d_qkv, 2);
  check.operand("out", args.out.dtype);
  check.tensor("d_qkv", args.d_qkv, scalar_type(args.out.dtype), args.out.shape);
  const int64_t rotated = (args.num_heads + args.num_kv_heads) * args.key_width;
  check.that(rotated > 0 && args.d_qkv.dim(1) >= rotated, "d_qkv holds fewer than q and k");
  check.rotation(args.cos, args.sin, args.rotation, args.key_width);
  check.tensor("position", args.position, DType::I32, {args.d_qkv.dim(0)});
  launch(context, args.out.dtype, &KernelTable::rope_backward, args);
}

void attention_backward(const Context& context, const AttentionBackward& args) {
  const OpCheck check("attention_backward", context);
  check.rank("q", args.q, 3);
  check.operand("q", args.q.dtype);
  check.pages(args.kv, args.q);
  check.that(args.q.dim(1) % args.kv.shape.heads == 0,
             "query heads are not a multiple of KV heads");
  check.rank("q_starts", args.q_starts, 1);
  check.rank("page_table", args.page_table, 2);
  check.that(args.page_table.dim(0) + 1 == args.q_starts.dim(0),
             "page_table and q_starts differ in sequences");
  const KvShape& kv = args.kv.shape;
  check.that(kv.values == KvValues::own, "values are a part of the keys");
  const Shape out{args.q.dim(0), args.q.dim(1), kv.value_width};
  check.tensor("out", args.out, args.q.dtype, out);
  check.tensor("d_out", args.d_out, args.q.dtype, out);
  if (args.log_sums)
    check.tensor("log_sums", args.log_sums, DType::F32, {args.q.dim(0), args.q.dim(1)});
  check.tensor("d_qkv", args.d_qkv, scalar_type(args.q.dtype),
               {args.q.dim(0), args.q.dim(1) * args.q.dim(2) + kv.projected_width()});
  if (args.rounded) {
    check.tensor("rounded", args.rounded, args.q.dtype, args.d_qkv.shape);
    check.rotation(args.cos, args.sin, args.rotation, args.q.dim(2));
    check.tensor("position", args.position, DType::I32, {args.q.dim(0)});
  }
  launch(context, args.q.dtype, &KernelTable::attention_backward, args);
  if (args.rounded && !context.table->copies_in_pass) rope_backward(context, rotation_back(args));
}

void embedding_backward(const Context& context, const EmbeddingBackward& args) {
  const OpCheck check("embedding_backward", context);
  check.rank("ids", args.ids, 1);
  check.rank("d_table", args.d_table, 2);
  const DType scalar = scalar_type(args.d_out.dtype);
  check.tensor("d_out", args.d_out, scalar, {args.ids.dim(0), args.d_table.dim(1)});
  check.tensor("d_table", args.d_table, scalar, args.d_table.shape);
  launch(context, scalar, &KernelTable::embedding_backward, args);
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackward& args) {
  const OpCheck check("cross_entropy_backward", context);
  check.rank("logits", args.logits, 2);
  check.operand("d_logits", args.d_logits.dtype);
  const DType scalar = scalar_type(args.d_logits.dtype);
  check.tensor("logits", args.logits, scalar, args.d_logits.shape);
  check.tensor("target", args.target, DType::I32, {args.logits.dim(0)});
  check.tensor("log_prob", args.log_prob, scalar, {args.logits.dim(0)});
  launch(context, args.d_logits.dtype, &KernelTable::cross_entropy_backward, args);
}

void balance_loss(const Context& context, const BalanceLoss& args) {
  const OpCheck check("balance_loss", context);
  check.rank("affinity", args.affinity, 2);
  check.rank("index", args.index, 2);
  check.rank("sequence_starts", args.sequence_starts, 1);
  const DType scalar = scalar_type(args.affinity.dtype);
  const int64_t tokens = args.affinity.dim(0);
  check.tensor("affinity", args.affinity, scalar, args.affinity.shape);
  check.tensor("index", args.index, DType::I32, {tokens, args.index.dim(1)});
  check.tensor("d_affinity", args.d_affinity, scalar, args.affinity.shape);
  check.tensor("losses", args.losses, DType::F64, {2});
  check.that(args.sequences_per_group > 0, "a balance group needs at least one sequence");
  check.that(args.num_devices > 0 && args.affinity.dim(1) % args.num_devices == 0,
             "devices must divide the experts");
  launch(context, scalar, &KernelTable::balance_loss, args);
}

void router_z_loss(const Context& context, const RouterZLoss& args) {
  const OpCheck check("router_z_loss", context);
  check.rank("logits", args.logits, 2);
  const DType scalar = scalar_type(args.logits.dtype);
  check.tensor("logits", args.logits, scalar, args.logits.shape);
  check.tensor("is_counted", args.is_counted, DType::I32, {args.logits.dim(0)});
  check.tensor("d_logits", args.d_logits, scalar, args.logits.shape);
  check.tensor("loss", args.loss, DType::F64, {1});
  launch(context, scalar, &KernelTable::router_z_loss, args);
}

void sum_of_squares(const Context& context, const SumOfSquares& args) {
  const OpCheck check("sum_of_squares", context);
  check.tensor("x", args.x, scalar_type(args.x.dtype), args.x.shape);
  check.tensor("out", args.out, DType::F64, {1});
  launch(context, args.x.dtype, &KernelTable::sum_of_squares, args);
}

void adamw_step(const Context& context, const AdamwStep& args) {
  const OpCheck check("adamw_step", context);
  const DType scalar = scalar_type(args.weight.dtype);
  check.tensor("weight", args.weight, scalar, args.weight.shape);
  check.tensor("gradient", args.gradient, scalar, args.weight.shape);
  check.tensor("first_moment", args.first_moment, scalar, args.weight.shape);
  check.tensor("second_moment", args.second_moment, scalar, args.weight.shape);
  check.optional("rounded", args.rounded, DType::BF16, args.weight.shape);
  check.that(context.table->device == Device::cpu || (!args.clear_gradient && !args.rounded),
             "only the CPU clears and rounds in the same pass");
  launch(context, scalar, &KernelTable::adamw_step, args);
}

namespace {

void check_step(const OpCheck& check, const OptimizerStep& args) {
  check.rank("tensor_of_tile", args.tensor_of_tile, 1);
  check.rank("square_sums", args.square_sums, 1);
  const int64_t count = args.square_sums.dim(0);
  check.tensor("square_sums", args.square_sums, DType::F64, {count});
  check.tensor("tensor_of_tile", args.tensor_of_tile, DType::I32, args.tensor_of_tile.shape);
  check.that(args.tensors.num_bytes() == static_cast<std::size_t>(count) * sizeof(OptimizerTensor),
             "tensors and square_sums differ in their number");
}

}  // namespace

void gradient_square_sums(const Context& context, const OptimizerStep& args) {
  const OpCheck check("gradient_square_sums", context);
  check.that(context.table->gradient_square_sums != nullptr, "this table steps tensors one by one");
  check_step(check, args);
  launch(context, DType::F32, &KernelTable::gradient_square_sums, args);
}

void optimizer_step(const Context& context, const OptimizerStep& args) {
  const OpCheck check("optimizer_step", context);
  check.that(context.table->optimizer_step != nullptr, "this table steps tensors one by one");
  check_step(check, args);
  launch(context, DType::F32, &KernelTable::optimizer_step, args);
}

}  // namespace dsmoe::kernels

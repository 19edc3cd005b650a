// The layer, step by step: route, plan, exchange, experts, exchange back, combine. Each token is
// computed in its own experts only.
#include "moe/layer.h"

#include <optional>
#include <span>

#include "kernels/balance.h"
#include "kernels/checks.h"
#include "kernels/composed.h"
#include "kernels/few_tokens.h"
#include "kernels/rms_norm.h"
#include "kernels/router.h"
#include "kernels/shared_gate.h"
#include "moe/plan.h"

namespace dsmoe::moe {
namespace {

// At most two families of experts: the routed and the shared.
template <class Family>
struct Families {
  Family list[2];
  std::size_t count = 0;
  void add(const Family& family) { list[count++] = family; }
  std::span<const Family> span() const { return {list, count}; }
};

// Rows of x in the order of the plan, for so many products.
kernels::Rows dispatched(const Context& context, const kernels::DispatchPlan& plan,
                         const TensorView& x, int readers, const TensorView& out,
                         const kernels::ColumnRange& columns = {}) {
  return kernels::dispatch(context, {.rows = {x, plan.token_of_row},
                                     .offsets = plan.expert_offsets,
                                     .row_of_slot = plan.row_of_slot,
                                     .columns = columns,
                                     .out = out,
                                     .readers = readers});
}

// s_{i,t}, the choice of the top K, and g_{i,t}.
void route(const Context& context, const LayerForward& args) {
  const LayerTape& tape = args.tape;
  kernels::router_forward(context, {.rule = args.rule,
                                    .x = args.x,
                                    .centroids = args.weights.centroids,
                                    .selection_bias = args.weights.selection_bias,
                                    .experts_of_token = args.experts_of_token,
                                    .replayed_index = args.replayed_index,
                                    .logits = tape.logits,
                                    .affinity = tape.affinity,
                                    .index = tape.index,
                                    .gate = tape.gate,
                                    .bad_token = tape.bad_token});
}

kernels::ExpertFamily routed_experts(const LayerForward& args) {
  const LayerTape& tape = args.tape;
  return {.gate = args.weights.routed.gate,
          .up = args.weights.routed.up,
          .down = args.weights.routed.down,
          .offsets = tape.plan.expert_offsets,
          .x = {args.x, tape.plan.token_of_row},
          .activation = tape.routed.activation,
          .out = args.workspace.routed_out,
          .gate_product = tape.routed.gate_product,
          .up_product = tape.routed.up_product};
}

kernels::ExpertFamily shared_experts(const LayerForward& args) {
  const ExpertTape& tape = args.tape.shared;
  return {.gate = args.weights.shared.gate,
          .up = args.weights.shared.up,
          .down = args.weights.shared.down,
          .offsets = args.token_range,
          .x = {args.x},
          .activation = tape.activation,
          .out = args.workspace.shared_out,
          .gate_product = tape.gate_product,
          .up_product = tape.up_product};
}

// The whole layer in one launch, where there is such a kernel and nobody wants what lies between.
bool few_tokens_forward(const Context& context, const LayerForward& args) {
  const LayerTape& tape = args.tape;
  const bool is_routed = !args.weights.routed || args.weights.centroids;
  if (tape.routed.gate_product || tape.shared.gate_product || tape.logits || args.out ||
      args.replayed_index || args.weights.shared_gate || !is_routed) {
    return false;
  }
  kernels::FewTokensFfn fused{.rule = args.rule,
                              .norm_weight = args.norm_weight,
                              .eps = args.eps,
                              .experts_of_token = args.experts_of_token,
                              .residual = args.residual};
  if (!args.norm_weight) fused.x = args.x;
  if (args.weights.routed) {
    fused.centroids = args.weights.centroids;
    fused.selection_bias = args.weights.selection_bias;
    fused.routed = routed_experts(args);
    fused.affinity = tape.affinity;
    fused.index = tape.index;
    fused.gate = tape.gate;
    fused.bad_token = tape.bad_token;
  }
  if (args.weights.shared) fused.shared = shared_experts(args);
  return kernels::ran("layer", args.residual.dim(0), kernels::few_tokens_ffn(context, fused));
}

// The experts of a pass `args`, and of the same as this rank's routed experts see it.
Families<kernels::ExpertFamily> all_experts(const LayerForward& args, const LayerForward& there) {
  Families<kernels::ExpertFamily> experts;
  if (args.weights.routed) experts.add(routed_experts(there));
  if (args.weights.shared) experts.add(shared_experts(args));
  return experts;
}

// One part of the outputs of all experts.
void experts_forward(const Context& context, const LayerForward& args, const LayerForward& there) {
  const Families<kernels::ExpertFamily> experts = all_experts(args, there);
  kernels::experts_part(context, {.operand = args.operand,
                                  .families = experts.span(),
                                  .columns = args.workspace.columns,
                                  .row_of_slot = there.tape.plan.row_of_slot,
                                  .x_rows = there.workspace.x_rows});
}

// A pass as this rank's routed experts see it: over the tokens that came.
LayerForward at_experts(const Exchange& exchange, const LayerForward& args) {
  LayerForward there = args;
  LayerMemory memory{.tape = args.tape, .workspace = args.workspace};
  memory.tape.plan = exchange.experts_plan();
  cut_routed(memory, memory.tape.plan.token_of_row.dim(0));
  there.tape = memory.tape;
  there.workspace = memory.workspace;
  there.x = exchange.experts_x();
  return there;
}

// One part of the columns of the layer's output.
void combine(const Context& context, const LayerForward& args) {
  const LayerTape& tape = args.tape;
  kernels::CombineForward all{.columns = args.workspace.columns,
                              .residual = args.out ? args.out : args.residual,
                              .base = args.residual};
  if (args.weights.routed) {
    all.index = tape.index;
    all.gate = tape.gate;
    all.row_of_slot = tape.plan.row_of_slot;
    all.routed = args.workspace.routed_out;
  }
  if (args.weights.shared) all.shared = args.workspace.shared_out;
  if (args.weights.shared && args.weights.shared_gate) all.shared_gate = tape.shared_gate;
  kernels::combine_forward(context, all);
}

}  // namespace

void layer_forward(const Context& context, const LayerForward& args) {
  const LayerTape& tape = args.tape;
  const Exchange exchange(context, args.tape.plan, args.tape.exchange, args.workspace.exchange);
  if (exchange.is_alone() && few_tokens_forward(context, args)) return;
  if (args.norm_weight) {
    kernels::rms_norm_forward(
        context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  }
  if (args.weights.routed) {
    if (args.weights.centroids) route(context, args);
    build_plan(context, tape.index, args.sequence_starts, tape.plan);
    exchange.announce({.index = tape.index,
                       .sequence_starts = args.sequence_starts,
                       .sequences_per_unit = args.sequences_per_unit});
    exchange.send(args.x, tape.exchange.x);
  }
  if (args.weights.shared_gate) {
    kernels::shared_gate_forward(
        context, {.x = args.x, .weight = args.weights.shared_gate, .gate = tape.shared_gate});
  }
  std::optional<LayerForward> came;
  const LayerForward& there = exchange.is_alone() ? args : came.emplace(at_experts(exchange, args));
  LayerForward own = args;
  for (int64_t part = 0; part < args.workspace.parts; ++part) {
    own.workspace = args.workspace.part(part);
    const LayerForward& own_there = exchange.is_alone() ? own : there;  // ranks take no parts
    experts_forward(context, own, own_there);
    own.workspace.routed_out =
        exchange.bring_back(own_there.workspace.routed_out, args.workspace.exchange.home);
    combine(context, own);
  }
}

namespace {

kernels::ExpertFamilyBackward routed_experts(const LayerBackward& args) {
  const LayerTape& tape = args.tape;
  const LayerRowGradients& gradients = args.row_gradients;
  return {.gate_transposed = args.weights.routed.gate,
          .up_transposed = args.weights.routed.up,
          .down_transposed = args.weights.routed.down,
          .offsets = tape.plan.expert_offsets,
          .d_out = {args.d_out, tape.plan.token_of_row},
          .gate_of_row = gradients.gate_of_row,
          .activation = tape.routed.activation,
          .gate_product = tape.routed.gate_product,
          .up_product = tape.routed.up_product,
          .scaled_activation = gradients.routed.scaled_activation,
          .d_gate_of_row = gradients.d_gate_of_row,
          .d_gate_product = gradients.routed.d_gate_product,
          .d_up_product = gradients.routed.d_up_product,
          .d_x = gradients.routed.d_x};
}

kernels::ExpertFamilyBackward shared_experts(const LayerBackward& args) {
  const ExpertTape& tape = args.tape.shared;
  const ExpertRowGradients& gradients = args.row_gradients.shared;
  kernels::ExpertFamilyBackward family{.gate_transposed = args.weights.shared.gate,
                                       .up_transposed = args.weights.shared.up,
                                       .down_transposed = args.weights.shared.down,
                                       .offsets = args.token_range,
                                       .d_out = {args.d_out},
                                       .activation = tape.activation,
                                       .gate_product = tape.gate_product,
                                       .up_product = tape.up_product,
                                       .d_gate_product = gradients.d_gate_product,
                                       .d_up_product = gradients.d_up_product,
                                       .d_x = gradients.d_x};
  if (args.weights.shared_gate) {
    family.gate_of_row = args.tape.shared_gate;
    family.gate_of_row.shape = {family.gate_of_row.dim(0)};
    family.scaled_activation = gradients.scaled_activation;
    family.d_gate_of_row = args.row_gradients.d_shared_gate;
  }
  return family;
}

LayerBackward at_experts(const Exchange& exchange, const LayerBackward& args) {
  LayerBackward there = args;
  LayerMemory memory{args.tape, args.workspace, args.row_gradients};
  memory.tape.plan = exchange.experts_plan();
  const int64_t rows = memory.tape.plan.token_of_row.dim(0);
  cut_routed(memory, rows);
  there.tape = memory.tape;
  there.workspace = memory.workspace;
  there.row_gradients = memory.gradients;
  there.row_gradients.gate_of_row = args.workspace.exchange.gate_of_row.rows(0, rows);
  there.row_gradients.d_gate_of_row = args.workspace.exchange.d_gate_of_row.rows(0, rows);
  there.x = exchange.experts_x();
  there.d_out = args.workspace.exchange.d_out.rows(0, there.x.dim(0));
  return there;
}

// Weight gradients that one launch may share.
struct GradientList {
  kernels::WeightGradient list[4];
  std::size_t count = 0;
  void add(const kernels::WeightGradient& gradient) { list[count++] = gradient; }
  std::span<const kernels::WeightGradient> span() const { return {list, count}; }
};

// dW of down, of d_out's columns from `first_column` on.
void add_down(GradientList& list, const LayerBackward& args, const ExpertGradients& gradients,
              const kernels::ExpertFamilyBackward& family, const kernels::Rows& d_out,
              int64_t first_column, const TensorView& sequence_offsets) {
  if (!gradients.down) return;
  // What it multiplies is gate * activation.
  list.add({.dy = d_out,
            .x = {family.scaled_activation ? family.scaled_activation : family.activation},
            .sequence_offsets = sequence_offsets,
            .slot_of_matrix = gradients.slot_of_expert,
            .d_weight = gradients.down,
            .first_n = first_column,
            .start = args.start});
}

// dW of gate and up.
void add_up(GradientList& list, const LayerBackward& args, const ExpertGradients& gradients,
            const kernels::ExpertFamilyBackward& family, const kernels::Rows& x,
            const TensorView& sequence_offsets) {
  kernels::WeightGradient own{.x = x,
                              .sequence_offsets = sequence_offsets,
                              .slot_of_matrix = gradients.slot_of_expert,
                              .start = args.start};
  if (gradients.gate) {
    own.dy = {family.d_gate_product};
    own.d_weight = gradients.gate;
    list.add(own);
  }
  if (gradients.up) {
    own.dy = {family.d_up_product};
    own.d_weight = gradients.up;
    list.add(own);
  }
}

// Calls body(gradients, rows by expert and sequence) for the routed experts' buffers: one for all
// rows, or for each rank's unit its own, in the order of units.
template <class Body>
void for_routed_gradients(const LayerBackward& args, const LayerBackward& there,
                          const Exchange& exchange, Body&& body) {
  if (args.routed_of_unit.empty()) {
    body(args.gradients.routed, there.tape.plan.sequence_offsets);
    return;
  }
  for (std::size_t rank = 0; rank < args.routed_of_unit.size(); ++rank) {
    body(args.routed_of_unit[rank],
         exchange.sequence_offsets_of_unit(static_cast<int64_t>(rank),
                                           args.balance.sequences_per_group));
  }
}

template <class Body>
kernels::BesideWork gradient_work(const Context& context, const LayerBackward& args, Body&& body) {
  if (args.work == GradientWork::beside) return kernels::run_beside(context, body);
  body(context);
  return {};
}

// From d_out to the gradients of the gate and up products, and dW of down, part by part of d_out's
// columns; that of the shared experts beside the first.
kernels::BesideWork down_backward(const Context& context, const LayerBackward& args,
                                  const LayerBackward& there, const Exchange& exchange,
                                  const TensorView& one_matrix) {
  const kernels::DispatchPlan& plan = there.tape.plan;
  const LayerWorkspace& workspace = there.workspace;
  const bool routed = static_cast<bool>(args.weights.routed);
  Families<kernels::ExpertFamilyBackward> experts;
  if (routed) {
    experts.add(routed_experts(there));
    if (workspace.parts == 1) {
      kernels::wait_beside(context, args.before.down);  // reads d_out_rows
      experts.list[0].d_out = dispatched(context, plan, there.d_out, 2, workspace.d_out_rows);
    }
  }
  if (args.weights.shared) experts.add(shared_experts(args));
  kernels::experts_down_backward(context, {.operand = args.operand, .families = experts.span()});

  kernels::BesideWork work;
  GradientList list;
  if (args.weights.shared) {
    add_down(list, args, args.gradients.shared, experts.list[experts.count - 1], {args.d_out}, 0,
             one_matrix);
  }
  const auto finish = [&] {
    work = gradient_work(context, args,
                         [&](const Context& own) { kernels::weight_gradients(own, list.span()); });
    list = {};
  };
  if (!routed) finish();
  for (int64_t part = 0; routed && part < workspace.parts; ++part) {
    const LayerWorkspace own = workspace.part(part);
    const kernels::Rows rows =
        workspace.parts == 1 || !args.gradients.routed.down
            ? experts.list[0].d_out
            : dispatched(context, plan, there.d_out, 2, own.d_out_rows, own.columns);
    for_routed_gradients(
        args, there, exchange, [&](const ExpertGradients& gradients, const TensorView& offsets) {
          add_down(list, args, gradients, experts.list[0], rows, own.columns.begin, offsets);
          finish();
        });
  }
  return work;
}

// d_e += d_logits^T x, and dW of gate and up.
void up_gradients(const Context& context, const LayerBackward& args, const LayerBackward& there,
                  const Exchange& exchange, const TensorView& one_matrix) {
  if (args.gradients.centroids) {
    kernels::weight_gradient(context, {.dy = {args.row_gradients.d_logits},
                                       .x = {args.x},
                                       .sequence_offsets = one_matrix,
                                       .d_weight = args.gradients.centroids});
  }
  if (args.gradients.shared_gate) {
    kernels::weight_gradient(context, {.dy = {args.row_gradients.d_shared_logit},
                                       .x = {args.x},
                                       .sequence_offsets = one_matrix,
                                       .d_weight = args.gradients.shared_gate});
  }
  const kernels::DispatchPlan& plan = there.tape.plan;
  const ExpertGradients& routed = args.gradients.routed;
  GradientList list;
  if (args.weights.shared)
    add_up(list, args, args.gradients.shared, shared_experts(args), {args.x}, one_matrix);
  if (args.weights.routed && (routed.gate || routed.up)) {
    const kernels::Rows x = dispatched(context, plan, there.x, 2, there.workspace.late_x_rows);
    for_routed_gradients(args, there, exchange,
                         [&](const ExpertGradients& gradients, const TensorView& offsets) {
                           add_up(list, args, gradients, routed_experts(there), x, offsets);
                           kernels::weight_gradients(context, list.span());
                           list = {};
                         });
    return;
  }
  kernels::weight_gradients(context, list.span());
}

// d_x: the experts' share, then the router's, + d_logits e.
void up_backward(const Context& context, const LayerBackward& args, const LayerBackward& there,
                 const Exchange& exchange) {
  Families<kernels::ExpertFamilyBackward> experts;
  kernels::CombineForward dispatch_adjoint{.residual = args.d_x, .store = kernels::Store::assign};
  if (args.weights.routed) {
    experts.add(routed_experts(there));
    dispatch_adjoint.index = args.tape.index;
    dispatch_adjoint.row_of_slot = args.tape.plan.row_of_slot;
  }
  if (args.weights.shared) {
    experts.add(shared_experts(args));
    dispatch_adjoint.shared = args.row_gradients.shared.d_x;
  }
  kernels::experts_up_backward(context, {.operand = args.operand, .families = experts.span()});
  dispatch_adjoint.routed =
      exchange.bring_back(there.row_gradients.routed.d_x, args.workspace.exchange.home);
  kernels::CombineBackward all{.combine = dispatch_adjoint};
  if (args.weights.centroids) {
    all.d_logits = args.row_gradients.d_logits;
    all.centroids = args.weights.centroids;
  }
  kernels::input_gradient(context, all);
  if (args.weights.shared_gate) {
    kernels::matmul_forward(context, {.operand = kernels::scalar_type(args.operand),
                                      .x = args.row_gradients.d_shared_logit,
                                      .weight = args.weights.shared_gate,
                                      .out = args.d_x,
                                      .store = kernels::Store::accumulate});
  }
}

// Balance losses, then from the gates' gradients to the logits'.
void route_backward(const Context& context, const LayerBackward& args) {
  const LayerTape& tape = args.tape;
  const LayerRowGradients& gradients = args.row_gradients;
  const bool balanced = args.balance.alpha != 0 || args.balance.device_alpha != 0;
  if (balanced) {
    kernels::balance_loss(context, {.score = args.rule.score,
                                    .sequences_per_group = args.balance.sequences_per_group,
                                    .alpha = args.balance.alpha,
                                    .device_alpha = args.balance.device_alpha,
                                    .num_devices = args.balance.num_devices,
                                    .group_weight = args.balance.group_weight,
                                    .affinity = tape.affinity,
                                    .index = tape.index,
                                    .sequence_starts = args.sequence_starts,
                                    .d_affinity = gradients.d_affinity,
                                    .losses = args.losses.balance});
  }
  kernels::wait_beside(context, args.before.up);  // reads d_logits
  kernels::router_backward(context, {.rule = args.rule,
                                     .affinity = tape.affinity,
                                     .index = tape.index,
                                     .row_of_slot = tape.plan.row_of_slot,
                                     .d_gate_of_row = gradients.d_gate_of_row,
                                     .d_affinity = balanced ? gradients.d_affinity : TensorView{},
                                     .d_logits = gradients.d_logits});
  if (args.balance.z_alpha != 0) {
    kernels::router_z_loss(context, {.weight = args.balance.z_alpha * args.balance.token_weight,
                                     .logits = tape.logits,
                                     .is_counted = args.is_counted,
                                     .d_logits = gradients.d_logits,
                                     .loss = args.losses.z});
  }
}

}  // namespace

LayerWork layer_backward(const Context& context, const LayerBackward& args) {
  TensorView one_matrix = args.sequence_starts;  // all tokens, as the rows of a single matrix
  one_matrix.shape = {1, args.sequence_starts.dim(0)};
  const Exchange exchange(context, args.tape.plan, args.tape.exchange, args.workspace.exchange);
  if (args.weights.routed) {
    kernels::dispatch_gates(context, {.gate = args.tape.gate,
                                      .row_of_slot = args.tape.plan.row_of_slot,
                                      .gate_of_row = args.row_gradients.gate_of_row});
    exchange.send_rows(args.row_gradients.gate_of_row, args.workspace.exchange.gate_of_row);
    exchange.send(args.d_out, args.workspace.exchange.d_out);
  }
  std::optional<LayerBackward> came;
  const LayerBackward& there =
      exchange.is_alone() ? args : came.emplace(at_experts(exchange, args));
  LayerWork work;
  work.down = down_backward(context, args, there, exchange, one_matrix);
  if (args.weights.routed) {
    exchange.bring_back(there.row_gradients.d_gate_of_row, args.row_gradients.d_gate_of_row);
    if (args.weights.centroids) route_backward(context, args);
  }
  if (args.weights.shared_gate) {
    kernels::shared_gate_backward(context, {.gate = args.tape.shared_gate,
                                            .d_gate = args.row_gradients.d_shared_gate,
                                            .d_logit = args.row_gradients.d_shared_logit});
  }
  work.up = gradient_work(context, args, [&](const Context& own) {
    up_gradients(own, args, there, exchange, one_matrix);
  });
  up_backward(context, args, there, exchange);
  return work;
}

}  // namespace dsmoe::moe

// The layer, step by step: route, plan, experts, combine. Each token is computed in its own experts
// only.
#include "moe/layer.h"

#include <span>

#include "kernels/balance.h"
#include "kernels/beside.h"
#include "kernels/combine.h"
#include "kernels/few_tokens.h"
#include "kernels/rms_norm.h"
#include "kernels/router.h"
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

// Rows of x in the order of the plan, a part of their columns, for so many products; in `room`, or
// where the experts' outputs lie: nobody needs them before experts_down_forward, nor from combine
// to experts_up_backward, writes there. Absent where products gather by themselves.
TensorView dispatched(const Context& context, const LayerState& state, const TensorView& x,
                      int readers, const TensorView& room = {}) {
  const TensorView& out = room ? room : state.routed_out;
  const bool done = kernels::dispatch_rows(context, {.x = x,
                                                     .offsets = state.plan.expert_offsets,
                                                     .token_of_row = state.plan.token_of_row,
                                                     .row_of_slot = state.plan.row_of_slot,
                                                     .columns = state.columns,
                                                     .out = out,
                                                     .readers = readers});
  return done ? out : TensorView{};
}

// s_{i,t}, the choice of the top K, and g_{i,t}.
void route(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  kernels::router_forward(context, {.rule = args.rule,
                                    .x = args.x,
                                    .centroids = args.weights.centroids,
                                    .selection_bias = args.weights.selection_bias,
                                    .experts_of_token = args.experts_of_token,
                                    .replayed_index = args.replayed_index,
                                    .logits = state.logits,
                                    .affinity = state.affinity,
                                    .index = state.index,
                                    .gate = state.gate,
                                    .bad_token = state.bad_token});
}

kernels::ExpertFamily routed_experts(const LayerForward& args) {
  const LayerState& state = args.state;
  return {.gate = args.weights.routed.gate,
          .up = args.weights.routed.up,
          .down = args.weights.routed.down,
          .offsets = state.plan.expert_offsets,
          .token_of_row = state.plan.token_of_row,
          .activation = state.routed_activation,
          .out = state.routed_out,
          .gate_product = state.routed_gate_product,
          .up_product = state.routed_up_product};
}

kernels::ExpertFamily shared_experts(const LayerForward& args) {
  const LayerState& state = args.state;
  return {.gate = args.weights.shared.gate,
          .up = args.weights.shared.up,
          .down = args.weights.shared.down,
          .offsets = args.token_range,
          .activation = state.shared_activation,
          .out = state.shared_out,
          .gate_product = state.shared_gate_product,
          .up_product = state.shared_up_product};
}

// The whole layer in one launch, where there is such a kernel and nobody wants what lies between.
bool few_tokens_forward(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  if (state.routed_gate_product || state.shared_gate_product || state.logits || args.out ||
      args.replayed_index) {
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
    fused.affinity = state.affinity;
    fused.index = state.index;
    fused.gate = state.gate;
    fused.bad_token = state.bad_token;
  }
  if (args.weights.shared) fused.shared = shared_experts(args);
  return kernels::few_tokens_ffn(context, fused);
}

Families<kernels::ExpertFamily> all_experts(const LayerForward& args) {
  Families<kernels::ExpertFamily> experts;
  if (args.weights.routed) experts.add(routed_experts(args));
  if (args.weights.shared) experts.add(shared_experts(args));
  return experts;
}

// Both products in one launch, where there is such a kernel.
bool experts_forward(const Context& context, const LayerForward& args) {
  return args.state.parts == 1 &&
         kernels::experts_forward(context, {.x = args.x, .families = all_experts(args).span()});
}

// The gate and up products of all experts. Laying out pays where a row makes more values than it
// has; and a product needs whole rows: where memory holds a part of their columns only, it gathers
// them by itself.
void up_forward(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  Families<kernels::ExpertFamily> experts;
  if (args.weights.routed) {
    kernels::ExpertFamily routed = routed_experts(args);
    if (state.parts == 1 && 2 * routed.gate.n > routed.gate.k)
      routed.x_rows = dispatched(context, state, args.x, 1);
    experts.add(routed);
  }
  if (args.weights.shared) experts.add(shared_experts(args));
  kernels::experts_up_forward(context, {.x = args.x, .families = experts.span()});
}

// One part of the outputs of all experts.
void down_forward(const Context& context, const LayerForward& args) {
  kernels::experts_down_forward(
      context, {.families = all_experts(args).span(), .columns = args.state.columns});
}

// One part of the columns of the layer's output.
void combine(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  kernels::CombineForward all{.columns = state.columns,
                              .residual = args.out ? args.out : args.residual,
                              .base = args.residual};
  if (args.weights.routed) {
    all.index = state.index;
    all.gate = state.gate;
    all.row_of_slot = state.plan.row_of_slot;
    all.routed = state.routed_out;
  }
  if (args.weights.shared) all.shared = state.shared_out;
  kernels::combine_forward(context, all);
}

}  // namespace

void layer_forward(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  if (few_tokens_forward(context, args)) return;
  if (args.norm_weight) {
    kernels::rms_norm_forward(
        context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  }
  if (args.weights.routed) {
    route(context, args);
    build_plan(context, state.index, args.sequence_starts, state.plan);
  }
  const bool done = experts_forward(context, args);
  if (!done) up_forward(context, args);
  LayerForward own = args;
  for (int64_t part = 0; part < state.parts; ++part) {
    own.state = state.of_part(part);
    if (!done) down_forward(context, own);
    combine(context, own);
  }
}

namespace {

kernels::ExpertFamilyBackward routed_experts(const LayerBackward& args) {
  const LayerState& state = args.state;
  const BackwardState& scratch = args.scratch;
  return {.gate_transposed = args.weights.routed.gate,
          .up_transposed = args.weights.routed.up,
          .down_transposed = args.weights.routed.down,
          .offsets = state.plan.expert_offsets,
          .token_of_row = state.plan.token_of_row,
          .gate_of_row = scratch.gate_of_row,
          .activation = state.routed_activation,
          .gate_product = state.routed_gate_product,
          .up_product = state.routed_up_product,
          .scaled_activation = state.routed_activation,
          .d_gate_of_row = scratch.d_gate_of_row,
          .d_gate_product = state.routed_gate_product,
          .d_up_product = state.routed_up_product,
          .d_x = state.routed_out};
}

kernels::ExpertFamilyBackward shared_experts(const LayerBackward& args) {
  const LayerState& state = args.state;
  return {.gate_transposed = args.weights.shared.gate,
          .up_transposed = args.weights.shared.up,
          .down_transposed = args.weights.shared.down,
          .offsets = args.token_range,
          .activation = state.shared_activation,
          .gate_product = state.shared_gate_product,
          .up_product = state.shared_up_product,
          .d_gate_product = state.shared_gate_product,
          .d_up_product = state.shared_up_product,
          .d_x = state.shared_out};
}

// Weight gradients that one launch may share.
struct GradientList {
  kernels::WeightGradient list[4];
  std::size_t count = 0;
  void add(const kernels::WeightGradient& gradient) { list[count++] = gradient; }
  std::span<const kernels::WeightGradient> span() const { return {list, count}; }
};

// dW of down; `d_out_rows`: d_out in the order of the family's rows, or absent.
void add_down(GradientList& list, const LayerBackward& args, const ExpertGradients& gradients,
              const kernels::ExpertFamilyBackward& family, const TensorView& d_out_rows,
              int64_t first_column, const TensorView& sequence_offsets) {
  if (!gradients.down) return;
  // What it multiplies is gate * activation.
  list.add({.dy = d_out_rows ? d_out_rows : args.d_out,
            .dy_of_row = d_out_rows ? TensorView{} : family.token_of_row,
            .x = family.scaled_activation ? family.scaled_activation : family.activation,
            .sequence_offsets = sequence_offsets,
            .slot_of_matrix = gradients.slot_of_expert,
            .d_weight = gradients.down,
            .first_n = first_column,
            .start = args.start});
}

// dW of gate and up; `x_rows`: x in the order of the family's rows, or absent.
void add_up(GradientList& list, const LayerBackward& args, const ExpertGradients& gradients,
            const kernels::ExpertFamilyBackward& family, const TensorView& x_rows,
            const TensorView& sequence_offsets) {
  kernels::WeightGradient own{.x = x_rows ? x_rows : args.x,
                              .x_of_row = x_rows ? TensorView{} : family.token_of_row,
                              .sequence_offsets = sequence_offsets,
                              .slot_of_matrix = gradients.slot_of_expert,
                              .start = args.start};
  if (gradients.gate) {
    own.dy = family.d_gate_product;
    own.d_weight = gradients.gate;
    list.add(own);
  }
  if (gradients.up) {
    own.dy = family.d_up_product;
    own.d_weight = gradients.up;
    list.add(own);
  }
}

template <class Body>
void gradient_work(const Context& context, const LayerBackward& args, Body&& body) {
  if (args.work == GradientWork::in_turn) return body(context);
  kernels::run_beside(context, body);
}

// From d_out to the gradients of the gate and up products, and dW of down, part by part of d_out's
// columns; that of the shared experts beside the first.
void down_backward(const Context& context, const LayerBackward& args,
                   const TensorView& one_matrix) {
  const LayerState& state = args.state;
  const bool routed = static_cast<bool>(args.weights.routed);
  Families<kernels::ExpertFamilyBackward> experts;
  if (routed) {
    experts.add(routed_experts(args));
    if (state.parts == 1) {
      experts.list[0].d_out_rows = dispatched(context, state, args.d_out, 2, state.d_out_rows);
    }
  }
  if (args.weights.shared) experts.add(shared_experts(args));
  kernels::experts_down_backward(context, {.d_out = args.d_out, .families = experts.span()});

  GradientList list;
  if (args.weights.shared) {
    add_down(list, args, args.gradients.shared, experts.list[experts.count - 1], {}, 0, one_matrix);
  }
  for (int64_t part = 0; part < state.parts; ++part) {
    if (routed && args.gradients.routed.down) {
      const LayerState own = state.of_part(part);
      const TensorView rows =
          state.parts == 1 ? experts.list[0].d_out_rows : dispatched(context, own, args.d_out, 2);
      add_down(list, args, args.gradients.routed, experts.list[0], rows, own.columns.begin,
               state.plan.sequence_offsets);
    }
    gradient_work(context, args,
                  [&](const Context& own) { kernels::weight_gradients(own, list.span()); });
    list = {};
  }
}

// d_e += d_logits^T x, and dW of gate and up.
void up_gradients(const Context& context, const LayerBackward& args, const TensorView& one_matrix) {
  const LayerState& state = args.state;
  if (args.gradients.centroids) {
    kernels::weight_gradient(context, {.dy = args.scratch.d_logits,
                                       .x = args.x,
                                       .sequence_offsets = one_matrix,
                                       .d_weight = args.gradients.centroids});
  }
  const ExpertGradients& gradients = args.gradients.routed;
  GradientList list;
  if (args.weights.shared)
    add_up(list, args, args.gradients.shared, shared_experts(args), {}, one_matrix);
  if (args.weights.routed && (gradients.gate || gradients.up)) {
    add_up(list, args, gradients, routed_experts(args),
           dispatched(context, state, args.x, 2, state.x_rows), state.plan.sequence_offsets);
  }
  kernels::weight_gradients(context, list.span());
}

// d_x: the experts' share, then the router's, + d_logits e.
void up_backward(const Context& context, const LayerBackward& args) {
  const LayerState& state = args.state;
  Families<kernels::ExpertFamilyBackward> experts;
  kernels::CombineForward dispatch_adjoint{.residual = args.d_x, .store = kernels::Store::assign};
  if (args.weights.routed) {
    experts.add(routed_experts(args));
    dispatch_adjoint.index = state.index;
    dispatch_adjoint.row_of_slot = state.plan.row_of_slot;
    dispatch_adjoint.routed = state.routed_out;
  }
  if (args.weights.shared) {
    experts.add(shared_experts(args));
    dispatch_adjoint.shared = state.shared_out;
  }
  kernels::experts_up_backward(context, {.families = experts.span()});
  const kernels::CombineBackward both{.combine = dispatch_adjoint,
                                      .d_logits = args.scratch.d_logits,
                                      .centroids = args.weights.centroids};
  if (args.weights.routed && kernels::combine_backward(context, both)) return;
  kernels::combine_forward(context, dispatch_adjoint);
  if (args.weights.routed) {
    kernels::matmul_forward(context, {.x = both.d_logits,
                                      .weight = both.centroids,
                                      .out = args.d_x,
                                      .store = kernels::Store::accumulate});
  }
}

// Balance losses, then from the gates' gradients to the logits'.
void route_backward(const Context& context, const LayerBackward& args) {
  const LayerState& state = args.state;
  const BackwardState& scratch = args.scratch;
  const bool balanced = args.balance.alpha != 0 || args.balance.device_alpha != 0;
  if (balanced) {
    kernels::balance_loss(context, {.score = args.rule.score,
                                    .sequences_per_group = args.balance.sequences_per_group,
                                    .alpha = args.balance.alpha,
                                    .device_alpha = args.balance.device_alpha,
                                    .num_devices = args.balance.num_devices,
                                    .group_weight = args.balance.group_weight,
                                    .affinity = state.affinity,
                                    .index = state.index,
                                    .sequence_starts = args.sequence_starts,
                                    .d_affinity = scratch.d_affinity,
                                    .losses = args.losses.balance});
  }
  kernels::router_backward(context, {.rule = args.rule,
                                     .affinity = state.affinity,
                                     .index = state.index,
                                     .row_of_slot = state.plan.row_of_slot,
                                     .d_gate_of_row = scratch.d_gate_of_row,
                                     .d_affinity = balanced ? scratch.d_affinity : TensorView{},
                                     .d_logits = scratch.d_logits});
  if (args.balance.z_alpha != 0) {
    kernels::router_z_loss(context, {.weight = args.balance.z_alpha * args.balance.token_weight,
                                     .logits = state.logits,
                                     .is_counted = args.is_counted,
                                     .d_logits = scratch.d_logits,
                                     .loss = args.losses.z});
  }
}

}  // namespace

void layer_backward(const Context& context, const LayerBackward& args) {
  const LayerState& state = args.state;
  TensorView one_matrix = args.sequence_starts;  // all tokens, as the rows of a single matrix
  one_matrix.shape = {1, args.sequence_starts.dim(0)};
  if (args.weights.routed) {
    kernels::dispatch_gates(context, {.gate = state.gate,
                                      .row_of_slot = state.plan.row_of_slot,
                                      .gate_of_row = args.scratch.gate_of_row});
  }
  down_backward(context, args, one_matrix);
  if (args.weights.routed) route_backward(context, args);
  LayerBackward late = args;
  late.state = state.without_activations();
  gradient_work(context, args, [&](const Context& own) { up_gradients(own, late, one_matrix); });
  up_backward(context, late);
}

}  // namespace dsmoe::moe

// The layer, step by step: route, plan, experts, combine. Each token is computed in its own experts
// only.
#include "moe/layer.h"

#include <span>

#include "kernels/balance.h"
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

// Rows of x in the order of the plan for so many products, where the experts' outputs lie: nobody
// needs them before experts_down_forward, nor from combine to experts_up_backward, writes there.
// Absent where products gather by themselves.
TensorView dispatched(const Context& context, const LayerState& state, const TensorView& x,
                      int readers) {
  const bool done = kernels::dispatch_rows(context, {.x = x,
                                                     .offsets = state.plan.expert_offsets,
                                                     .token_of_row = state.plan.token_of_row,
                                                     .out = state.routed_out,
                                                     .readers = readers});
  return done ? state.routed_out : TensorView{};
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
  if (state.bad_token.device == kernels::Device::cpu && state.bad_token.as<int32_t>()[0] >= 0) {
    fail(ErrorKind::input,
         "layer {}: the router's scores of token {} are not finite; the weights or the activations "
         "are broken "
         "(NaN or infinity)",
         args.layer_idx, state.bad_token.as<int32_t>()[0]);
  }
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
  if (state.routed_gate_product || state.shared_gate_product || state.logits ||
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

}  // namespace

void layer_forward(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  if (few_tokens_forward(context, args)) return;
  if (args.norm_weight) {
    kernels::rms_norm_forward(context, {.x = args.residual,
                                        .weight = args.norm_weight,
                                        .eps = args.eps,
                                        .out = args.x,
                                        .kept = args.kept});
  }
  Families<kernels::ExpertFamily> experts;
  if (args.weights.routed) {
    route(context, args);
    build_plan(context, state.index, args.sequence_starts, state.plan);
    kernels::ExpertFamily routed = routed_experts(args);
    // Laying out pays where a row makes more values than it has.
    if (2 * routed.gate.n > routed.gate.k) routed.x_rows = dispatched(context, state, args.x, 1);
    experts.add(routed);
  }
  if (args.weights.shared) experts.add(shared_experts(args));

  kernels::experts_up_forward(context, {.x = args.x, .families = experts.span()});
  kernels::experts_down_forward(context, {.families = experts.span()});

  kernels::CombineForward combine{.residual = args.residual};
  if (args.weights.routed) {
    combine.index = state.index;
    combine.gate = state.gate;
    combine.row_of_slot = state.plan.row_of_slot;
    combine.routed = state.routed_out;
  }
  if (args.weights.shared) combine.shared = state.shared_out;
  kernels::combine_forward(context, combine);
}

namespace {

kernels::ExpertFamilyBackward routed_experts(const Context& context, const LayerBackward& args) {
  const LayerState& state = args.state;
  const BackwardState& scratch = args.scratch;
  return {.gate_transposed = args.weights.routed.gate,
          .up_transposed = args.weights.routed.up,
          .down_transposed = args.weights.routed.down,
          .offsets = state.plan.expert_offsets,
          .token_of_row = state.plan.token_of_row,
          .d_out_rows = dispatched(context, state, args.d_out, 2),
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

constexpr std::size_t kMostWaiting = 2;

// dW of down, then of gate and up: two lists, because the rows they read may share a place.
struct GradientLists {
  kernels::WeightGradient down[kMostWaiting + 2];
  kernels::WeightGradient up[4];
  std::size_t down_count = 0;
  std::size_t up_count = 0;

  explicit GradientLists(std::span<const kernels::WeightGradient> waiting) {
    DSMOE_CHECK(waiting.size() <= kMostWaiting, "too many weight gradients wait for the layer's");
    for (const kernels::WeightGradient& other : waiting) down[down_count++] = other;
  }

  // `scaled_activation` is what the down product's gradient multiplies: gate * activation.
  void add_down(const LayerBackward& args, const ExpertGradients& gradients,
                const kernels::ExpertFamilyBackward& family, const TensorView& sequence_offsets) {
    if (!gradients.down) return;
    kernels::WeightGradient& own = down[down_count++];
    own = {.dy = args.d_out,
           .dy_of_row = family.token_of_row,
           .x = family.scaled_activation ? family.scaled_activation : family.activation,
           .sequence_offsets = sequence_offsets,
           .slot_of_matrix = gradients.slot_of_expert,
           .d_weight = gradients.down,
           .start = args.start};
    if (family.d_out_rows) {
      own.dy = family.d_out_rows;
      own.dy_of_row = {};
    }
  }
  // `x_rows`: x in the order of the family's rows, or absent.
  void add_up(const LayerBackward& args, const ExpertGradients& gradients,
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
      up[up_count++] = own;
    }
    if (gradients.up) {
      own.dy = family.d_up_product;
      own.d_weight = gradients.up;
      up[up_count++] = own;
    }
  }
};

// Balance losses, then from the gates' gradients to the logits'; d_x += d_logits e, d_e +=
// d_logits^T x.
void route_backward(const Context& context, const LayerBackward& args,
                    const TensorView& one_matrix) {
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
  kernels::matmul_forward(context, {.x = scratch.d_logits,
                                    .weight = args.weights.centroids,
                                    .out = args.d_x,
                                    .store = kernels::Store::accumulate});
  if (args.gradients.centroids) {
    kernels::weight_gradient(context, {.dy = scratch.d_logits,
                                       .x = args.x,
                                       .sequence_offsets = one_matrix,
                                       .d_weight = args.gradients.centroids});
  }
}

}  // namespace

void layer_backward(const Context& context, const LayerBackward& args) {
  const LayerState& state = args.state;
  const BackwardState& scratch = args.scratch;
  const bool routed = static_cast<bool>(args.weights.routed);
  const bool shared = static_cast<bool>(args.weights.shared);
  TensorView one_matrix = args.sequence_starts;  // all tokens, as the rows of a single matrix
  one_matrix.shape = {1, args.sequence_starts.dim(0)};

  Families<kernels::ExpertFamilyBackward> experts;
  if (routed) {
    kernels::dispatch_gates(context, {.gate = state.gate,
                                      .row_of_slot = state.plan.row_of_slot,
                                      .gate_of_row = scratch.gate_of_row});
    experts.add(routed_experts(context, args));
  }
  if (shared) experts.add(shared_experts(args));
  kernels::experts_down_backward(context, {.d_out = args.d_out, .families = experts.span()});
  GradientLists lists(args.waiting);
  if (routed) {
    lists.add_down(args, args.gradients.routed, experts.list[0], state.plan.sequence_offsets);
  }
  if (shared) {
    lists.add_down(args, args.gradients.shared, experts.list[experts.count - 1], one_matrix);
  }
  kernels::weight_gradients(context, {lists.down, lists.down_count});
  if (routed && (args.gradients.routed.gate || args.gradients.routed.up)) {
    lists.add_up(args, args.gradients.routed, experts.list[0], dispatched(context, state, args.x, 2),
                 state.plan.sequence_offsets);
  }
  if (shared) {
    lists.add_up(args, args.gradients.shared, experts.list[experts.count - 1], {}, one_matrix);
  }
  kernels::weight_gradients(context, {lists.up, lists.up_count});
  kernels::experts_up_backward(context, {.families = experts.span()});

  kernels::CombineForward dispatch_adjoint{.residual = args.d_x, .store = kernels::Store::assign};
  if (routed) {
    dispatch_adjoint.index = state.index;
    dispatch_adjoint.row_of_slot = state.plan.row_of_slot;
    dispatch_adjoint.routed = state.routed_out;
  }
  if (shared) dispatch_adjoint.shared = state.shared_out;
  kernels::combine_forward(context, dispatch_adjoint);
  if (routed) route_backward(context, args, one_matrix);
}

}  // namespace dsmoe::moe

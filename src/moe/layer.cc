// The layer, step by step: route, plan, experts, combine. Each token is computed in its own experts
// only.
#include "moe/layer.h"

#include <array>

#include "kernels/combine.h"
#include "moe/plan.h"

namespace dsmoe::moe {
namespace {

// s_{i,t}, the choice of the top K, and g_{i,t}.
void route(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  kernels::router_forward(context, {.rule = args.rule,
                                    .x = args.x,
                                    .centroids = args.weights.centroids,
                                    .selection_bias = args.weights.selection_bias,
                                    .experts_of_token = args.experts_of_token,
                                    .replayed_index = args.replayed_index,
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

kernels::ExpertFamily family(const ExpertWeights& weights, const TensorView& offsets,
                             const TensorView& token_of_row, const TensorView& activation,
                             const TensorView& out) {
  return {.gate = weights.gate,
          .up = weights.up,
          .down = weights.down,
          .offsets = offsets,
          .token_of_row = token_of_row,
          .activation = activation,
          .out = out};
}

}  // namespace

void layer_forward(const Context& context, const LayerForward& args) {
  const LayerState& state = args.state;
  std::array<kernels::ExpertFamily, 2> families;
  std::size_t num_families = 0;
  if (args.weights.routed) {
    route(context, args);
    build_plan(context, state.index, args.sequence_starts, state.plan);
    families[num_families++] =
        family(args.weights.routed, state.plan.expert_offsets, state.plan.token_of_row,
               state.routed_activation, state.routed_out);
  }
  if (args.weights.shared) {
    families[num_families++] = family(args.weights.shared, args.token_range, {},
                                      state.shared_activation, state.shared_out);
  }
  const std::span<const kernels::ExpertFamily> experts(families.data(), num_families);
  kernels::experts_up_forward(context, {.x = args.x, .families = experts});
  kernels::experts_down_forward(context, {.families = experts});

  const bool routed = static_cast<bool>(args.weights.routed);
  kernels::combine_forward(context,
                           {.index = routed ? state.index : TensorView{},
                            .gate = routed ? state.gate : TensorView{},
                            .row_of_slot = routed ? state.plan.row_of_slot : TensorView{},
                            .routed = routed ? state.routed_out : TensorView{},
                            .shared = args.weights.shared ? state.shared_out : TensorView{},
                            .residual = args.residual});
}

LayerState used_part(const LayerState& state, int64_t tokens, int64_t sequences, int64_t top_k) {
  LayerState used = state;
  const auto cut = [](TensorView& view, int64_t rows) {
    if (view) view = view.rows(0, rows);
  };
  cut(used.shared_activation, tokens);
  cut(used.shared_out, tokens);
  if (!state.index) return used;
  const int64_t experts = state.affinity.dim(1);
  used.index.shape = used.gate.shape = used.plan.row_of_slot.shape = {tokens, top_k};
  used.plan.sequence_offsets.shape = {experts, sequences + 1};
  cut(used.affinity, tokens);
  cut(used.plan.token_of_row, tokens * top_k);
  cut(used.routed_activation, tokens * top_k);
  cut(used.routed_out, tokens * top_k);
  return used;
}

LayerState allocate_state(const LayerSize& size, tensor::Arena& arena) {
  const DType scalar = size.operand == DType::F64 ? DType::F64 : DType::F32;
  const int64_t slots = size.max_tokens * size.top_k;
  LayerState state;
  if (size.num_experts > 0) {
    state.affinity = arena.tensor("router", scalar, {size.max_tokens, size.num_experts});
    state.index = arena.tensor("router", DType::I32, {size.max_tokens, size.top_k});
    state.gate = arena.tensor("router", scalar, {size.max_tokens, size.top_k});
    state.bad_token = arena.tensor("router", DType::I32, {1});
    state.plan = allocate_plan({.num_experts = size.num_experts,
                                .max_sequences = size.max_sequences,
                                .max_tokens = size.max_tokens,
                                .top_k = size.top_k},
                               arena);
    state.routed_activation = arena.tensor("experts", size.operand, {slots, size.routed_width});
    state.routed_out = arena.tensor("experts", size.operand, {slots, size.hidden});
  }
  if (size.shared_width > 0) {
    state.shared_activation =
        arena.tensor("experts", size.operand, {size.max_tokens, size.shared_width});
    state.shared_out = arena.tensor("experts", size.operand, {size.max_tokens, size.hidden});
  }
  return state;
}

}  // namespace dsmoe::moe

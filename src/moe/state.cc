// Allocation at full size, and the cut to what one call needs.
#include "moe/state.h"

#include <algorithm>

#include "kernels/combine.h"
#include "moe/plan.h"

namespace dsmoe::moe {
namespace {

DType scalar_of(DType operand) { return operand == DType::F64 ? DType::F64 : DType::F32; }

// Whole tiles of the products.
int64_t columns_of_part(int64_t hidden, int64_t parts) {
  constexpr int64_t kTile = 128;
  const int64_t tiles = (hidden + kTile - 1) / kTile;
  return parts == 1 ? hidden : (tiles + parts - 1) / parts * kTile;
}

// Parts of outputs and activations one behind the other; whole outputs over them.
void share_memory(LayerState& state, const LayerSize& size, tensor::Arena& arena) {
  const int64_t slots = size.max_tokens * size.top_k;
  const int64_t tokens = size.shared_width > 0 ? size.max_tokens : 0;
  const int64_t columns = columns_of_part(size.hidden, size.parts);
  const int64_t early =
      slots * (columns + size.routed_width) + tokens * (columns + size.shared_width);
  const int64_t late = (slots + tokens) * size.hidden;
  const TensorView all = arena.tensor("experts", size.operand, {std::max(early, late)});
  const auto pieces = [&all, at = static_cast<std::byte*>(all.data)](int64_t rows,
                                                                     int64_t width) mutable {
    TensorView piece;
    if (rows == 0) return piece;
    piece = all;
    piece.data = at;
    piece.shape = {rows, width};
    at += piece.num_bytes();
    return piece;
  };
  auto take = pieces;
  state.routed_out = take(slots, columns);
  state.shared_out = take(tokens, columns);
  state.routed_activation = take(slots, size.routed_width);
  state.shared_activation = take(tokens, size.shared_width);
  auto take_late = pieces;
  state.routed_late = take_late(slots, size.hidden);
  state.shared_late = take_late(tokens, size.hidden);
}

void cut(TensorView& view, int64_t rows) {
  if (view) view = view.rows(0, rows);
}

}  // namespace

LayerState LayerState::of_part(int64_t part) const {
  if (parts == 1) return *this;
  LayerState own = *this;
  const int64_t width = routed_out.dim(1);
  own.columns = {.begin = part * width, .count = std::min(width, hidden - part * width)};
  own.routed_out.shape = {routed_out.dim(0), own.columns.count};
  if (shared_out) own.shared_out.shape = {shared_out.dim(0), own.columns.count};
  return own;
}

LayerState LayerState::without_activations() const {
  LayerState late = *this;
  if (parts > 1) {
    late.parts = 1;
    late.routed_out = routed_late;
    late.shared_out = shared_late;
  }
  return late;
}

int64_t parts_that_fit(const kernels::Context& context, const LayerSize& size, int64_t wanted) {
  const auto fits = [&](int64_t width) {
    return kernels::takes_parts(context,
                                {.operand = size.operand, .hidden = size.hidden, .width = width});
  };
  const int64_t columns = columns_of_part(size.hidden, wanted);
  return size.num_experts > 0 && fits(size.routed_width) && fits(size.shared_width)
             ? (size.hidden + columns - 1) / columns
             : 1;
}

LayerState allocate_state(const LayerSize& size, tensor::Arena& arena, const LayerState* lender) {
  const DType scalar = scalar_of(size.operand);
  const int64_t tokens = size.max_tokens;
  const int64_t slots = tokens * size.top_k;
  const bool training = size.passes == Passes::forward_and_backward;
  LayerState state;
  state.parts = size.parts;
  state.hidden = size.hidden;
  const int64_t columns = columns_of_part(size.hidden, size.parts);
  const auto experts = [&](int64_t rows, int64_t width) {
    return arena.tensor("experts", size.operand, {rows, width});
  };
  const auto lent = [&](TensorView LayerState::*out, int64_t rows) {
    const bool fits =
        lender && lender->*out && (lender->*out).shape == kernels::Shape{rows, columns};
    return fits ? lender->*out : experts(rows, columns);
  };
  if (size.parts > 1) share_memory(state, size, arena);
  if (size.num_experts > 0) {
    if (training) state.logits = arena.tensor("router", scalar, {tokens, size.num_experts});
    state.affinity = arena.tensor("router", scalar, {tokens, size.num_experts});
    state.index = arena.tensor("router", DType::I32, {tokens, size.top_k});
    state.gate = arena.tensor("router", scalar, {tokens, size.top_k});
    state.bad_token = arena.tensor("router", DType::I32, {1});
    state.plan = allocate_plan({.num_experts = size.num_experts,
                                .max_sequences = size.max_sequences,
                                .max_tokens = tokens,
                                .top_k = size.top_k},
                               arena);
    if (size.parts == 1) {
      state.routed_activation = experts(slots, size.routed_width);
      state.routed_out = lent(&LayerState::routed_out, slots);
    }
    if (size.work == GradientWork::beside) {
      state.d_out_rows = lent(&LayerState::d_out_rows, slots);
      state.x_rows = lent(&LayerState::x_rows, slots);
    }
    if (training) {
      state.routed_gate_product = experts(slots, size.routed_width);
      state.routed_up_product = experts(slots, size.routed_width);
    }
  }
  if (size.shared_width > 0) {
    if (size.parts == 1) {
      state.shared_activation = experts(tokens, size.shared_width);
      state.shared_out = lent(&LayerState::shared_out, tokens);
    }
    if (training) {
      state.shared_gate_product = experts(tokens, size.shared_width);
      state.shared_up_product = experts(tokens, size.shared_width);
    }
  }
  return state;
}

BackwardState allocate_backward_state(const LayerSize& size, tensor::Arena& arena) {
  const DType scalar = scalar_of(size.operand);
  const int64_t slots = size.max_tokens * size.top_k;
  BackwardState state;
  if (size.num_experts == 0) return state;
  const auto router = [&](const kernels::Shape& shape) {
    return arena.tensor("router, backward", scalar, shape);
  };
  state.gate_of_row = router({slots});
  state.d_gate_of_row = router({slots});
  state.d_affinity = router({size.max_tokens, size.num_experts});
  state.d_logits = router({size.max_tokens, size.num_experts});
  return state;
}

LayerState used_part(const LayerState& state, int64_t tokens, int64_t sequences, int64_t top_k) {
  LayerState used = state;
  cut(used.shared_activation, tokens);
  cut(used.shared_out, tokens);
  cut(used.shared_late, tokens);
  cut(used.shared_gate_product, tokens);
  cut(used.shared_up_product, tokens);
  if (!state.index) return used;
  used.index.shape = used.gate.shape = used.plan.row_of_slot.shape = {tokens, top_k};
  used.plan.sequence_offsets.shape = {state.affinity.dim(1), sequences + 1};
  cut(used.logits, tokens);
  cut(used.affinity, tokens);
  cut(used.plan.token_of_row, tokens * top_k);
  cut(used.routed_activation, tokens * top_k);
  cut(used.routed_out, tokens * top_k);
  cut(used.d_out_rows, tokens * top_k);
  cut(used.x_rows, tokens * top_k);
  cut(used.routed_late, tokens * top_k);
  cut(used.routed_gate_product, tokens * top_k);
  cut(used.routed_up_product, tokens * top_k);
  return used;
}

BackwardState used_part(const BackwardState& state, int64_t tokens, int64_t top_k) {
  BackwardState used = state;
  cut(used.gate_of_row, tokens * top_k);
  cut(used.d_gate_of_row, tokens * top_k);
  cut(used.d_affinity, tokens);
  cut(used.d_logits, tokens);
  return used;
}

}  // namespace dsmoe::moe

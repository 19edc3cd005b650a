// Allocation at full size, and the cut to what one call needs.
#include "moe/memory.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/combine.h"
#include "moe/plan.h"

namespace dsmoe::moe {
namespace {

// Whole tiles of the products.
int64_t columns_of_part(int64_t hidden, int64_t parts) {
  constexpr int64_t kTile = 128;
  const int64_t tiles = (hidden + kTile - 1) / kTile;
  return parts == 1 ? hidden : (tiles + parts - 1) / parts * kTile;
}

// Takes the memory of one layer, view by view.
class Allocation {
 public:
  Allocation(const LayerSize& size, tensor::Arena& arena, LayerMemory& common)
      : size_(size),
        arena_(arena),
        common_(common),
        training_(size.passes == Passes::forward_and_backward) {
    memory_.workspace.parts = size.parts;
    memory_.workspace.hidden = size.hidden;
  }

  LayerMemory run() {
    if (size_.num_experts > 0) take_router();
    if (has_exchange()) take_exchange();
    if (size_.has_shared_gate) take_shared_gate();
    if (size_.parts > 1) {
      take_outputs_in_parts();
    } else {
      take_outputs();
    }
    if (training_) {
      take_products(memory_.tape.routed, routed_rows(), size_.routed_width);
      take_products(memory_.tape.shared, shared_rows(), size_.shared_width);
      lay_gradients_over();
    }
    return memory_;
  }

 private:
  ExchangeSize exchange_size() const {
    return {.rank = size_.rank,
            .ranks = size_.ranks,
            .max_tokens = size_.max_tokens,
            .max_sequences = size_.max_sequences,
            .hidden = size_.hidden,
            .num_experts = size_.num_experts,
            .top_k = size_.top_k,
            .operand = size_.operand};
  }
  bool has_exchange() const { return size_.num_experts > 0 && size_.ranks > 1; }
  // What this rank's experts may have to compute.
  int64_t routed_rows() const {
    if (has_exchange()) return exchange_size().max_rows();
    return size_.num_experts > 0 ? size_.max_tokens * size_.top_k : 0;
  }
  int64_t shared_rows() const { return size_.shared_width > 0 ? size_.max_tokens : 0; }

  TensorView experts(int64_t rows, int64_t width) const {
    return rows > 0 ? arena_.tensor("experts", size_.operand, {rows, width}) : TensorView{};
  }
  // A view that all layers have in common, if one of this shape is there.
  TensorView in_common(TensorView& common, const char* name, DType dtype,
                       const kernels::Shape& shape) const {
    if (shape.num_elements() == 0) return {};
    if (common && common.shape == shape) return common;
    const TensorView own = arena_.tensor(name, dtype, shape);
    if (!common) common = own;
    return own;
  }
  TensorView rows_in_common(TensorView& common, int64_t rows) const {
    return in_common(common, "experts", size_.operand, {rows, size_.hidden});
  }

  void take_router() {
    const DType scalar = kernels::scalar_type(size_.operand);
    const int64_t tokens = size_.max_tokens;
    const kernels::Shape scores{tokens, size_.num_experts};
    LayerTape& tape = memory_.tape;
    if (training_) tape.logits = arena_.tensor("router", scalar, scores);
    tape.affinity = arena_.tensor("router", scalar, scores);
    tape.index = arena_.tensor("router", DType::I32, {tokens, size_.top_k});
    tape.gate = arena_.tensor("router", scalar, {tokens, size_.top_k});
    tape.bad_token = arena_.tensor("router", DType::I32, {1});
    tape.plan = allocate_plan({.num_experts = size_.num_experts,
                               .max_sequences = size_.max_sequences,
                               .max_tokens = tokens,
                               .top_k = size_.top_k},
                              arena_);
    if (!training_) return;
    LayerRowGradients& gradients = memory_.gradients;
    const auto take = [&](TensorView LayerRowGradients::*view, const kernels::Shape& shape) {
      gradients.*view = in_common(common_.gradients.*view, "router, backward", scalar, shape);
    };
    take(&LayerRowGradients::gate_of_row, {tokens * size_.top_k});
    take(&LayerRowGradients::d_gate_of_row, {tokens * size_.top_k});
    take(&LayerRowGradients::d_affinity, scores);
    take(&LayerRowGradients::d_logits, scores);
  }

  void take_shared_gate() {
    const DType scalar = kernels::scalar_type(size_.operand);
    memory_.tape.shared_gate = arena_.tensor("router", scalar, {size_.max_tokens, 1});
    if (!training_) return;
    const auto take = [&](TensorView LayerRowGradients::*view, const kernels::Shape& shape) {
      memory_.gradients.*view =
          in_common(common_.gradients.*view, "router, backward", scalar, shape);
    };
    take(&LayerRowGradients::d_shared_gate, {size_.max_tokens});
    take(&LayerRowGradients::d_shared_logit, {size_.max_tokens, 1});
  }

  void take_exchange() {
    DSMOE_CHECK(size_.parts == 1, "experts of {} ranks in {} parts of their columns", size_.ranks,
                size_.parts);
    memory_.tape.exchange = allocate_exchange_tape(exchange_size(), arena_);
    ExchangeWorkspace& common = common_.workspace.exchange;
    if (!common.outbox) common = allocate_exchange_workspace(exchange_size(), arena_);
    memory_.workspace.exchange = common;
  }

  // Rows of x lie where the outputs will: the up products have read them before down writes there.
  // Behind combine the outputs are not needed any more. Then rows of d_out lie there until down's
  // weight gradient has read them, then rows of x until those of gate and up have, then d_x. Rows
  // that gradients beside may still be reading have memory of their own.
  void take_outputs() {
    LayerWorkspace& own = memory_.workspace;
    LayerWorkspace& common = common_.workspace;
    memory_.tape.routed.activation = experts(routed_rows(), size_.routed_width);
    memory_.tape.shared.activation = experts(shared_rows(), size_.shared_width);
    own.routed_out = rows_in_common(common.routed_out, routed_rows());
    own.shared_out = rows_in_common(common.shared_out, shared_rows());
    own.x_rows = own.routed_out;
    if (!training_) return;
    own.d_out_rows = own.late_x_rows = own.routed_out;
    if (size_.work == GradientWork::beside) {
      own.d_out_rows = rows_in_common(common.d_out_rows, routed_rows());
      own.late_x_rows = rows_in_common(common.late_x_rows, routed_rows());
    }
    memory_.gradients.routed.d_x = own.routed_out;
    memory_.gradients.shared.d_x = own.shared_out;
  }

  // Parts of the outputs, behind them the activations; over both, rows with all their columns,
  // which come after down's weight gradient has read the activations and the last part of d_out.
  void take_outputs_in_parts() {
    const int64_t columns = columns_of_part(size_.hidden, size_.parts);
    const int64_t early = routed_rows() * (columns + size_.routed_width) +
                          shared_rows() * (columns + size_.shared_width);
    const int64_t late = (routed_rows() + shared_rows()) * size_.hidden;
    const TensorView all = arena_.tensor("experts", size_.operand, {std::max(early, late)});
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
    auto take_early = pieces;
    memory_.workspace.routed_out = take_early(routed_rows(), columns);
    memory_.workspace.shared_out = take_early(shared_rows(), columns);
    memory_.workspace.d_out_rows = memory_.workspace.routed_out;
    memory_.tape.routed.activation = take_early(routed_rows(), size_.routed_width);
    memory_.tape.shared.activation = take_early(shared_rows(), size_.shared_width);
    auto take_late = pieces;
    memory_.gradients.routed.d_x = take_late(routed_rows(), size_.hidden);
    memory_.gradients.shared.d_x = take_late(shared_rows(), size_.hidden);
    memory_.workspace.late_x_rows = memory_.gradients.routed.d_x;
  }

  void take_products(ExpertTape& tape, int64_t rows, int64_t width) {
    tape.gate_product = experts(rows, width);
    tape.up_product = experts(rows, width);
  }

  // Each element is written by whoever has just read the one below it (kernels/experts.h), and
  // nobody reads the forward pass's numbers after that.
  void lay_gradients_over() {
    const auto lay = [](ExpertRowGradients& gradients, const ExpertTape& tape) {
      gradients.d_gate_product = tape.gate_product;
      gradients.d_up_product = tape.up_product;
    };
    lay(memory_.gradients.routed, memory_.tape.routed);
    lay(memory_.gradients.shared, memory_.tape.shared);
    memory_.gradients.routed.scaled_activation = memory_.tape.routed.activation;
    if (size_.has_shared_gate)
      memory_.gradients.shared.scaled_activation = memory_.tape.shared.activation;
  }

  const LayerSize& size_;
  tensor::Arena& arena_;
  LayerMemory& common_;
  bool training_;
  LayerMemory memory_;
};

void cut(std::initializer_list<TensorView*> views, int64_t rows) {
  for (TensorView* view : views) {
    if (*view) *view = view->rows(0, rows);
  }
}

void cut_experts(ExpertTape& tape, ExpertRowGradients& gradients, int64_t rows) {
  cut({&tape.activation, &tape.gate_product, &tape.up_product, &gradients.scaled_activation,
       &gradients.d_gate_product, &gradients.d_up_product, &gradients.d_x},
      rows);
}

}  // namespace

void cut_routed(LayerMemory& memory, int64_t rows) {
  auto& [tape, workspace, gradients] = memory;
  cut_experts(tape.routed, gradients.routed, rows);
  cut({&workspace.x_rows, &workspace.routed_out, &workspace.d_out_rows, &workspace.late_x_rows},
      rows);
}

LayerWorkspace LayerWorkspace::part(int64_t idx) const {
  if (parts == 1) return *this;
  LayerWorkspace own = *this;
  const int64_t width = routed_out.dim(1);
  own.columns = {.begin = idx * width, .count = std::min(width, hidden - idx * width)};
  for (TensorView* view : {&own.routed_out, &own.shared_out, &own.d_out_rows}) {
    if (*view) view->shape = {view->dim(0), own.columns.count};
  }
  return own;
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

LayerMemory allocate_memory(const LayerSize& size, tensor::Arena& arena, LayerMemory* common) {
  LayerMemory nothing;
  return Allocation(size, arena, common != nullptr ? *common : nothing).run();
}

LayerMemory used_part(const LayerMemory& memory, int64_t tokens, int64_t sequences, int64_t top_k) {
  LayerMemory used = memory;
  auto& [tape, workspace, gradients] = used;
  cut_experts(tape.shared, gradients.shared, tokens);
  cut({&workspace.shared_out, &tape.shared_gate, &gradients.d_shared_gate,
       &gradients.d_shared_logit},
      tokens);
  if (!tape.index) return used;
  tape.index.shape = tape.gate.shape = tape.plan.row_of_slot.shape = {tokens, top_k};
  tape.plan.sequence_offsets.shape = {tape.affinity.dim(1), sequences + 1};
  cut({&tape.logits, &tape.affinity, &gradients.d_affinity, &gradients.d_logits}, tokens);
  cut({&tape.plan.token_of_row, &gradients.gate_of_row, &gradients.d_gate_of_row}, tokens * top_k);
  if (tape.exchange) {  // how many rows there are, what comes will tell
    ExchangeWorkspace& exchange = workspace.exchange;
    cut({&exchange.home}, tokens * top_k);
    exchange.index.shape = {exchange.index.dim(0), top_k};
    for (TensorView* notes : {&exchange.notes_sent, &exchange.notes_come})
      notes->shape = {notes->dim(0), top_k + 1};
    return used;
  }
  cut_routed(used, tokens * top_k);
  return used;
}

}  // namespace dsmoe::moe

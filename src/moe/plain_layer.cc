// Packing of plain weights, and the passes over them.
#include "moe/plain_layer.h"

#include <algorithm>
#include <cstring>

#include "kernels/checks.h"
#include "kernels/pack.h"
#include "kernels/table.h"

namespace dsmoe::moe {
namespace {

using kernels::PackOrder;
using kernels::Shape;

// Matrix `idx` of a stack of arrays, or `rows` of it from `begin` on.
TensorView rows_of(const TensorView& stacked, int64_t idx, int64_t begin, int64_t rows) {
  const int64_t columns = stacked.dim(stacked.shape.rank() - 1);
  const int64_t per_matrix = stacked.dim(stacked.shape.rank() - 2);
  TensorView view = stacked;
  const int64_t first = (idx * per_matrix + begin) * columns;
  view.data = static_cast<std::byte*>(stacked.data) +
              first * static_cast<int64_t>(tensor::size_of(stacked.dtype));
  view.shape = {rows, columns};
  return view;
}

class Packer {
 public:
  Packer(const Context& context, tensor::Arena& arena, DType operand, PackOrder order)
      : context_(context), arena_(arena), operand_(operand), order_(order) {}

  // Stored [n, k], or its transpose.
  WeightStack stack(DType dtype, int64_t count, int64_t n, int64_t k) const {
    if (order_ == PackOrder::transposed) std::swap(n, k);
    WeightStack stack{
        .dtype = dtype, .layout = context_.table->weight_layout, .count = count, .n = n, .k = k};
    stack.data = arena_.bytes("weights", stack.num_bytes());
    return stack;
  }

  void pack(const TensorView& source, const WeightStack& target, int64_t idx) const {
    kernels::pack_weight(context_,
                         {.source = source, .target = target, .matrix_idx = idx, .order = order_});
  }

  ExpertWeights experts(const TensorView& gate_up, const TensorView& down, int64_t count,
                        int64_t width, int64_t hidden) const {
    ExpertWeights made{.gate = stack(operand_, count, width, hidden),
                       .up = stack(operand_, count, width, hidden),
                       .down = stack(operand_, count, hidden, width)};
    for (int64_t e = 0; e < count; ++e) {
      pack(rows_of(gate_up, e, 0, width), made.gate, e);
      pack(rows_of(gate_up, e, width, width), made.up, e);
      pack(rows_of(down, e, 0, hidden), made.down, e);
    }
    return made;
  }

 private:
  const Context& context_;
  tensor::Arena& arena_;
  DType operand_;
  PackOrder order_;
};

// All matrices of a layer in one order.
template <class Weights>
void pack_all(const Packer& packer, const PlainSize& size, const PlainWeights& plain,
              Weights& packed) {
  const DType scalar = kernels::scalar_type(size.operand);
  if (plain.centroids) {
    packed.centroids = packer.stack(scalar, 1, size.num_experts, size.hidden);
    packer.pack(plain.centroids, packed.centroids, 0);
  }
  packed.routed =
      packer.experts(plain.gate_up, plain.down, size.num_experts, size.routed_width, size.hidden);
  if (size.shared_width > 0) {
    packed.shared =
        packer.experts(plain.shared_gate_up, plain.shared_down, 1, size.shared_width, size.hidden);
  }
}

void check(const PlainSize& size, const PlainWeights& weights) {
  const auto expect = [](const char* name, const TensorView& view, const Shape& shape, DType type) {
    if (view && view.shape == shape && view.dtype == type) return;
    fail(ErrorKind::input, "{}: expected {} {}, got {}", name, tensor::name_of(type),
         to_string(shape),
         view ? fmt::format("{} {}", tensor::name_of(view.dtype), to_string(view.shape))
              : "nothing");
  };
  const int64_t h = size.hidden, e = size.num_experts, w = size.routed_width, s = size.shared_width;
  if (weights.centroids) expect("router", weights.centroids, {e, h}, size.operand);
  if (weights.selection_bias) {
    expect("bias", weights.selection_bias, {e}, kernels::scalar_type(size.operand));
  }
  expect("gate_up", weights.gate_up, {e, 2 * w, h}, size.operand);
  expect("down", weights.down, {e, h, w}, size.operand);
  if (s == 0) return;
  expect("shared_gate_up", weights.shared_gate_up, {2 * s, h}, size.operand);
  expect("shared_down", weights.shared_down, {h, s}, size.operand);
}

// A choice from outside: each expert at most once a token, -1 where there is none.
void check_choice(const PlainSize& size, const TensorView& index) {
  const int64_t top_k = size.rule.top_k;
  for (int64_t t = 0; t < index.dim(0); ++t) {
    const int32_t* slots = index.as<int32_t>() + t * top_k;
    for (int64_t k = 0; k < top_k; ++k) {
      const bool is_again = slots[k] >= 0 && std::count(slots, slots + k, slots[k]) > 0;
      if (slots[k] >= -1 && slots[k] < size.num_experts && !is_again) continue;
      fail(ErrorKind::input, "token {} has expert {}{}; expected -1 to {}, each once a token", t,
           slots[k], is_again ? " twice" : "", size.num_experts - 1);
    }
  }
}

}  // namespace

PlainMemory::PlainMemory(const Context& context, const PlainSize& size)
    : context_(context), size_(size), arena_("layer", context.table->allocator) {}

PlainMemory::Views PlainMemory::of(int64_t tokens, Passes passes) {
  const bool is_first_backward =
      passes == Passes::forward_and_backward && passes_ == Passes::forward;
  if (tokens > max_tokens_ || is_first_backward) {
    max_tokens_ = std::max(tokens, max_tokens_);
    if (is_first_backward) passes_ = passes;
    const DType scalar = kernels::scalar_type(size_.operand);
    views_ = {};
    arena_ = tensor::Arena("layer", context_.table->allocator);
    views_.memory = allocate_memory({.max_tokens = max_tokens_,
                                     .max_sequences = 1,
                                     .hidden = size_.hidden,
                                     .num_experts = size_.num_experts,
                                     .top_k = size_.rule.top_k,
                                     .routed_width = size_.routed_width,
                                     .shared_width = size_.shared_width,
                                     .operand = size_.operand,
                                     .passes = passes_},
                                    arena_);
    views_.range = arena_.tensor("range", DType::I32, {2});
    views_.residual = arena_.tensor("residual", scalar, {max_tokens_, size_.hidden});
    if (passes_ == Passes::forward_and_backward) {
      const auto apart = [&](int64_t count, int64_t width) -> Apart {
        const Shape shape{count, width, size_.hidden};
        return {arena_.tensor("gradients", scalar, shape),
                arena_.tensor("gradients", scalar, shape)};
      };
      views_.routed = apart(size_.num_experts, size_.routed_width);
      if (size_.shared_width > 0) views_.shared = apart(1, size_.shared_width);
    }
  }
  Views used = views_;
  used.memory = used_part(views_.memory, tokens, 1, size_.rule.top_k);
  used.range.as<int32_t>()[1] = static_cast<int32_t>(tokens);
  used.residual = views_.residual.rows(0, tokens);
  return used;
}

PlainLayer::PlainLayer(const Context& context, const PlainSize& size)
    : context_(context),
      size_(size),
      arena_("weights", context.table->allocator),
      transposed_arena_("transposes", context.table->allocator) {}

void PlainLayer::set_weights(const PlainWeights& weights) {
  check(size_, weights);
  weights_ = {};
  transposed_ = {};
  arena_ = tensor::Arena("weights", context_.table->allocator);
  transposed_arena_ = tensor::Arena("transposes", context_.table->allocator);
  pack_all(Packer(context_, arena_, size_.operand, PackOrder::as_stored), size_, weights, weights_);
  if (!weights.selection_bias) return;
  weights_.selection_bias =
      arena_.tensor("bias", weights.selection_bias.dtype, weights.selection_bias.shape);
  std::memcpy(weights_.selection_bias.data, weights.selection_bias.data,
              weights.selection_bias.num_bytes());
}

std::size_t PlainLayer::num_bytes() const {
  return arena_.total_bytes() + transposed_arena_.total_bytes();
}

void PlainLayer::run(const PlainMemory::Views& views, const PlainTokens& tokens,
                     const TensorView& out) const {
  const LayerTape& tape = views.memory.tape;
  if (!weights_.centroids) {
    check_choice(size_, tokens.index);
    std::memcpy(tape.index.data, tokens.index.data, tape.index.num_bytes());
    std::memcpy(tape.gate.data, tokens.gate.data, tape.gate.num_bytes());
    tape.bad_token.as<int32_t>()[0] = -1;
  }
  layer_forward(context_, {.operand = size_.operand,
                           .rule = size_.rule,
                           .weights = weights_,
                           .tape = tape,
                           .workspace = views.memory.workspace,
                           .x = tokens.x,
                           .token_range = views.range,
                           .sequence_starts = views.range,
                           .residual = out});
  if (const int32_t bad = tape.bad_token.as<int32_t>()[0]; bad >= 0) {
    fail(ErrorKind::input,
         "the router's scores of token {} are not finite; the weights or the activations are "
         "broken (NaN or infinity)",
         bad);
  }
}

void PlainLayer::forward(PlainMemory& memory, const PlainTokens& tokens,
                         const TensorView& out) const {
  const PlainMemory::Views views = memory.of(tokens.x.dim(0), Passes::forward);
  std::memset(out.data, 0, out.num_bytes());
  run(views, tokens, out);
  if (!weights_.centroids) return;
  std::memcpy(tokens.index.data, views.memory.tape.index.data, tokens.index.num_bytes());
  std::memcpy(tokens.gate.data, views.memory.tape.gate.data, tokens.gate.num_bytes());
}

namespace {

// Gate and up lie apart where products write them, one behind the other for each expert outside.
void interleave(const PlainMemory::Apart& apart, const TensorView& out) {
  const int64_t count = apart.gate.dim(0);
  const std::size_t bytes = apart.gate.num_bytes() / static_cast<std::size_t>(count);
  auto* to = static_cast<std::byte*>(out.data);
  for (int64_t e = 0; e < count; ++e) {
    for (const TensorView* part : {&apart.gate, &apart.up}) {
      std::memcpy(to, static_cast<std::byte*>(part->data) + static_cast<std::size_t>(e) * bytes,
                  bytes);
      to += bytes;
    }
  }
}

// Where the gradients of one family are made; none that nobody wants.
ExpertGradients gradients_of(const TensorView& down, const PlainMemory::Apart& apart) {
  if (!down) return {};
  ExpertGradients gradients{.gate = apart.gate, .up = apart.up, .down = down};
  gradients.down.shape = {apart.gate.dim(0), apart.gate.dim(2), apart.gate.dim(1)};
  return gradients;
}

}  // namespace

void PlainLayer::backward(PlainMemory& memory, const PlainWeights& weights,
                          const PlainBackward& args) {
  if (!transposed_.routed) {
    pack_all(Packer(context_, transposed_arena_, size_.operand, PackOrder::transposed), size_,
             weights, transposed_);
  }
  const PlainMemory::Views views = memory.of(args.tokens.x.dim(0), Passes::forward_and_backward);
  std::memset(views.residual.data, 0, views.residual.num_bytes());
  run(views, args.tokens, views.residual);

  LayerGradients gradients{.centroids = args.weights.centroids,
                           .routed = gradients_of(args.weights.down, views.routed),
                           .shared = gradients_of(args.weights.shared_down, views.shared)};
  if (gradients.centroids) {
    std::memset(gradients.centroids.data, 0, gradients.centroids.num_bytes());
    gradients.centroids.shape = {1, size_.num_experts, size_.hidden};
  }
  layer_backward(context_, {.operand = size_.operand,
                            .rule = size_.rule,
                            .weights = transposed_,
                            .gradients = gradients,
                            .start = kernels::GradientStart::from_zero,
                            .tape = views.memory.tape,
                            .workspace = views.memory.workspace,
                            .row_gradients = views.memory.gradients,
                            .x = args.tokens.x,
                            .d_out = args.d_out,
                            .token_range = views.range,
                            .sequence_starts = views.range,
                            .d_x = args.d_x});
  if (args.weights.down) interleave(views.routed, args.weights.gate_up);
  if (args.weights.shared_down) interleave(views.shared, args.weights.shared_gate_up);
  if (!args.d_gate) return;
  // From the order of rows to that of slots; absent slots have none.
  const TensorView& rows = views.memory.gradients.d_gate_of_row;
  const auto* row_of_slot = views.memory.tape.plan.row_of_slot.as<int32_t>();
  const std::size_t size = tensor::size_of(rows.dtype);
  auto* to = static_cast<std::byte*>(args.d_gate.data);
  for (int64_t slot = 0; slot < args.d_gate.num_elements(); ++slot, to += size) {
    const int32_t row = row_of_slot[slot];
    if (row < 0) {
      std::memset(to, 0, size);
    } else {
      std::memcpy(to, static_cast<std::byte*>(rows.data) + static_cast<std::size_t>(row) * size,
                  size);
    }
  }
}

}  // namespace dsmoe::moe

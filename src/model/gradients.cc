// Stacked gradient buffers and the named slices of them.
#include "model/gradients.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/checks.h"
#include "kernels/memory.h"

namespace dsmoe::model {
namespace {

TensorView& slot_of(Gradients& gradients, const Stack& stack) {
  BlockGradients& block =
      gradients.blocks[static_cast<std::size_t>(std::max<int64_t>(stack.layer, 0))];
  moe::ExpertGradients& routed = block.ffn.routed;
  moe::ExpertGradients& shared = block.ffn.shared;
  switch (stack.role) {
    case Role::embedding:
      return gradients.embedding;
    case Role::attention_norm:
      return block.attention_norm;
    case Role::query:
    case Role::query_down:
      return block.attention.qkv;
    case Role::query_norm:
    case Role::query_down_norm:
      return block.attention.q_norm;
    case Role::key_norm:
    case Role::key_value_norm:
      return block.attention.k_norm;
    case Role::query_up:
      return block.attention.q_up;
    case Role::key_value_up:
      return block.attention.kv_up;
    case Role::shared_expert_gate:
      return block.ffn.shared_gate;
    case Role::attention_out:
      return block.attention.out;
    case Role::query_bias:
      return block.attention.qkv_bias;
    case Role::attention_out_bias:
      return block.attention.out_bias;
    case Role::ffn_norm:
      return block.ffn_norm;
    case Role::router:
      return block.ffn.centroids;
    case Role::routed_gate:
      return routed.gate;
    case Role::routed_up:
      return routed.up;
    case Role::routed_down:
      return routed.down;
    case Role::shared_gate:
    case Role::dense_gate:
      return shared.gate;
    case Role::shared_up:
    case Role::dense_up:
      return shared.up;
    case Role::shared_down:
    case Role::dense_down:
      return shared.down;
    case Role::final_norm:
      return gradients.final_norm;
    case Role::head:
      return gradients.head;
    default:
      fail(ErrorKind::internal, "role {} has no gradient of its own", static_cast<int>(stack.role));
  }
}

// For each group of stacks, by its first: which of its matrices have a slot, and which; -1: none.
using Slots = std::vector<std::vector<int32_t>>;

Slots slots_of(const Inventory& all, const std::vector<bool>& is_wanted) {
  Slots slots;
  for (const Stack& stack : all.stacks) {
    slots.emplace_back(static_cast<std::size_t>(stack.count), -1);
  }
  for (const Place& place : all.places) {
    if (!is_wanted[place.parameter]) continue;
    slots[all.stacks[place.stack].group][static_cast<std::size_t>(place.matrix)] = 0;
  }
  for (std::vector<int32_t>& of_group : slots) {
    int32_t next = 0;
    for (int32_t& slot : of_group) {
      if (slot == 0) slot = next++;
    }
  }
  return slots;
}

}  // namespace

void join_tied(ThreadPool& pool, const NamedGradient& gradient) {
  const TensorView& first = gradient.gradient;
  const TensorView& second = gradient.second_part;
  if (!second) return;
  const auto add = [&]<class S>(S* sum, const S* part) {
    parallel_for(pool, first.num_elements(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum[i] += part[i];
    });
  };
  if (first.dtype == DType::F64) {
    add(first.as<double>(), second.as<double>());
  } else {
    add(first.as<float>(), second.as<float>());
  }
}

GradientBuffers allocate_gradients(const Context& context, const ModelConfig& config, DType operand,
                                   FunctionRef<bool(const std::string& name)> wanted,
                                   tensor::Arena& arena) {
  return allocate_gradients(
      context, inventory(config), operand,
      [&](const Parameter& parameter) { return wanted(parameter.name); }, arena);
}

GradientBuffers allocate_gradients(const Context& context, const Inventory& all, DType operand,
                                   FunctionRef<bool(const Parameter& parameter)> wanted,
                                   tensor::Arena& arena) {
  std::vector<bool> is_wanted;
  int64_t num_layers = 0;
  for (const Parameter& parameter : all.parameters) {
    is_wanted.push_back(parameter.update != Update::by_load && wanted(parameter));
    num_layers = std::max(num_layers, parameter.layer + 1);
  }
  const Slots slots = slots_of(all, is_wanted);
  GradientBuffers buffers;
  buffers.views.blocks.resize(static_cast<std::size_t>(num_layers));
  for (std::size_t i = 0; i < all.stacks.size(); ++i) {
    const Stack& stack = all.stacks[i];
    const std::vector<int32_t>& slot_of_matrix = slots[stack.group];
    const int64_t num_slots =
        std::ranges::count_if(slot_of_matrix, [](int32_t s) { return s >= 0; });
    if (num_slots == 0) continue;
    kernels::Shape shape = stack.shape();
    if (is_matrix(kind_of(stack.role))) shape = {num_slots, shape[0], shape[1]};
    slot_of(buffers.views, stack) = arena.tensor("gradients", kernels::scalar_type(operand), shape);
    if (num_slots == stack.count || i != stack.group) continue;
    TensorView& table =
        buffers.views.blocks[static_cast<std::size_t>(stack.layer)].ffn.routed.slot_of_expert;
    table = arena.tensor("gradients", DType::I32, {stack.count});
    kernels::upload(context, slot_of_matrix.data(), table);
  }
  for (const Place& place : all.places) {
    if (!is_wanted[place.parameter]) continue;
    const Parameter& parameter = all.parameters[place.parameter];
    const Stack& stack = all.stacks[place.stack];
    TensorView view = slot_of(buffers.views, stack);
    if (is_matrix(kind_of(stack.role))) {
      const int32_t slot = slots[stack.group][static_cast<std::size_t>(place.matrix)];
      view = view.rows(slot, slot + 1);
      view.shape = stack.shape();
    }
    view = view.rows(place.row_begin, place.row_begin + parameter.shape[0]);
    if (stack.repeats_embedding()) {
      buffers.named.front().second_part = view;  // the embedding is the first of all
      continue;
    }
    const Kind kind = kind_of(parameter.role);
    buffers.named.push_back({.name = parameter.name,
                             .parameter = place.parameter,
                             .gradient = view,
                             .is_assigned = kind == Kind::projection || kind == Kind::head});
  }
  std::sort(buffers.named.begin(), buffers.named.end(),
            [](const NamedGradient& a, const NamedGradient& b) { return a.name < b.name; });
  return buffers;
}

}  // namespace dsmoe::model

// Memory for the stacks of the inventory, and the way of stored tensors into it.
#include "model/parameters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/checks.h"
#include "kernels/pack.h"

namespace dsmoe::model {
namespace {

// Where the model keeps a stack: values as they lie, or a weight and its transpose. `memory`: the
// line of the memory table.
struct Slot {
  const char* memory;
  TensorView* values = nullptr;
  WeightStack* weight = nullptr;
  WeightStack* transposed = nullptr;
  attention::Weights* latent = nullptr;  // key_up and value_up
};

Slot slot_of(ParameterSet& set, const Stack& stack, attention::LatentForm form) {
  const auto layer = static_cast<std::size_t>(std::max<int64_t>(stack.layer, 0));
  attention::Weights& attention = set.forward.blocks[layer].attention;
  moe::LayerWeights& ffn = set.forward.blocks[layer].ffn;
  BlockTransposed& back = set.backward.blocks[layer];
  const auto weight = [](const char* memory, WeightStack& forward, WeightStack& transposed) {
    return Slot{.memory = memory, .weight = &forward, .transposed = &transposed};
  };
  switch (stack.role) {
    case Role::embedding:
      return {"embedding", &set.forward.embedding};
    case Role::attention_norm:
      return {"norms", &set.forward.blocks[layer].attention_norm};
    case Role::query:
    case Role::query_down:
      return weight("attention", attention.qkv, back.attention.qkv);
    case Role::query_norm:
    case Role::query_down_norm:
      return {"norms", &attention.q_norm};
    case Role::key_norm:
    case Role::key_value_norm:
      return {"norms", &attention.k_norm};
    case Role::query_up:
      return weight("attention", attention.q_up, back.attention.q_up);
    case Role::key_value_up:
      if (form == attention::LatentForm::absorbed)
        return {.memory = "attention", .latent = &attention};
      return weight("attention", attention.kv_up, back.attention.kv_up);
    case Role::attention_out:
      return weight("attention", attention.out, back.attention.out);
    case Role::query_bias:
      return {"attention", &attention.qkv_bias};
    case Role::attention_out_bias:
      return {"attention", &attention.out_bias};
    case Role::ffn_norm:
      return {"norms", &set.forward.blocks[layer].ffn_norm};
    case Role::router:
      return weight("router", ffn.centroids, back.ffn.centroids);
    case Role::selection_bias:
      return {"router", &ffn.selection_bias};
    case Role::routed_gate:
      return weight("routed experts", ffn.routed.gate, back.ffn.routed.gate);
    case Role::routed_up:
      return weight("routed experts", ffn.routed.up, back.ffn.routed.up);
    case Role::routed_down:
      return weight("routed experts", ffn.routed.down, back.ffn.routed.down);
    case Role::shared_gate:
      return weight("shared experts", ffn.shared.gate, back.ffn.shared.gate);
    case Role::shared_up:
      return weight("shared experts", ffn.shared.up, back.ffn.shared.up);
    case Role::shared_down:
      return weight("shared experts", ffn.shared.down, back.ffn.shared.down);
    case Role::shared_expert_gate:
      return weight("router", ffn.shared_gate, back.ffn.shared_gate);
    case Role::dense_gate:
      return weight("dense layers", ffn.shared.gate, back.ffn.shared.gate);
    case Role::dense_up:
      return weight("dense layers", ffn.shared.up, back.ffn.shared.up);
    case Role::dense_down:
      return weight("dense layers", ffn.shared.down, back.ffn.shared.down);
    case Role::final_norm:
      return {"norms", &set.forward.final_norm};
    case Role::head:
      return weight("head", set.forward.head, set.backward.head);
    case Role::key:
    case Role::value:
    case Role::key_bias:
    case Role::value_bias:
    case Role::key_value_down:
      break;
  }
  fail(ErrorKind::internal, "role {} has no stack of its own", static_cast<int>(stack.role));
}

}  // namespace

ParameterSet allocate_parameters(const Context& context, const ModelConfig& config,
                                 const Share& share, DType operand, moe::Passes passes,
                                 tensor::Arena& arena) {
  ParameterSet set{.inventory = inventory(config, share)};
  const auto num_layers = static_cast<std::size_t>(config.num_hidden_layers);
  set.forward.blocks.resize(num_layers);
  set.backward.blocks.resize(num_layers);
  // Integers stay integers where products take them; elsewhere the weight becomes the numbers they
  // stand for.
  const bool takes_integers = operand == DType::BF16 && passes == moe::Passes::forward &&
                              context.table->weight_layout == kernels::WeightLayout::panels;
  const auto allocate = [&](const std::string& memory, WeightStack stack) {
    stack.data = arena.bytes(memory, stack.num_bytes());
    return stack;
  };
  const attention::LatentForm form = attention::latent_form(passes);
  std::vector<Slot> slots;
  for (const Stack& stack : set.inventory.stacks) {
    const Slot& slot = slots.emplace_back(slot_of(set, stack, form));
    const DType dtype = is_operand(kind_of(stack.role)) ? operand : kernels::scalar_type(operand);
    if (slot.values != nullptr) {
      *slot.values = arena.tensor(slot.memory, dtype, stack.shape());
      continue;
    }
    if (slot.latent != nullptr) {
      const attention::Latent& latent = config.attention_shape().latent;
      const WeightStack plain{.dtype = dtype,
                              .layout = context.table->weight_layout,
                              .device = arena.device(),
                              .count = config.num_attention_heads};
      WeightStack& key = slot.latent->key_up = plain;
      key.n = latent.kv_rank;
      key.k = latent.nope;
      key = allocate(slot.memory, key);
      WeightStack& value = slot.latent->value_up = plain;
      value.n = latent.value;
      value.k = latent.kv_rank;
      value = allocate(slot.memory, value);
      continue;
    }
    *slot.weight = allocate(
        slot.memory, {.dtype = dtype,
                      .layout = context.table->weight_layout,
                      .device = arena.device(),
                      .count = stack.count,
                      .n = stack.rows(),
                      .k = stack.columns,
                      .coding = takes_integers ? stack.coding : kernels::WeightCoding::plain});
    if (passes != moe::Passes::forward_and_backward) continue;
    WeightStack transposed = *slot.weight;
    std::swap(transposed.n, transposed.k);
    *slot.transposed = context.table->takes_transposes
                           ? kernels::transpose_of(*slot.weight)
                           : allocate(std::string(slot.memory) + ", transposed", transposed);
  }
  for (const Place& place : set.inventory.places) {
    const Parameter& parameter = set.inventory.parameters[place.parameter];
    const Slot& slot = slots[place.stack];
    Placement placement{.name = parameter.name,
                        .parameter = place.parameter,
                        .matrix_idx = place.matrix,
                        .row_begin = place.row_begin};
    if (slot.values != nullptr) {
      placement.values = slot.values->rows(place.row_begin, place.row_begin + parameter.shape[0]);
      placement.row_begin = 0;
    } else if (slot.latent != nullptr) {
      placement.key_up = slot.latent->key_up;
      placement.value_up = slot.latent->value_up;
    } else {
      placement.weight = *slot.weight;
      if (slot.transposed->data != slot.weight->data) placement.transposed = *slot.transposed;
    }
    set.placements.push_back(std::move(placement));
  }
  return set;
}

namespace {

constexpr int64_t kRowsAtATime = 64;

// Coded rows of so many columns as BF16.
TensorView dequantised(const StoredTensor& stored, int64_t columns,
                       std::vector<std::byte>& memory) {
  const tensor::WeightCoding coding =
      stored.elements.dtype == DType::I8 ? tensor::WeightCoding::int8 : tensor::WeightCoding::int4;
  TensorView numbers{.dtype = DType::BF16, .shape = {stored.elements.dim(0), columns}};
  memory.resize(numbers.num_bytes());
  numbers.data = memory.data();
  const int64_t row_bytes = stored.elements.dim(1);
  const int64_t groups = stored.scale.dim(1);
  for (int64_t r = 0; r < numbers.dim(0); ++r) {
    const auto* row = static_cast<const uint8_t*>(stored.elements.data) + r * row_bytes;
    for (int64_t k = 0; k < columns; ++k) {
      tensor::Bf16 scale{};
      std::memcpy(&scale,
                  static_cast<const std::byte*>(stored.scale.data) +
                      2 * (r * groups + k / tensor::kGroupSize),
                  sizeof scale);
      numbers.as<tensor::Bf16>()[r * columns + k] =
          tensor::dequantise(scale, tensor::coded_element(coding, row, k));
    }
  }
  return numbers;
}

// Through a bounded host buffer, so that a table on a device needs no second copy in host memory.
void convert_values(const Context& context, const TensorView& stored, const TensorView& target) {
  DSMOE_CHECK(stored.shape == target.shape, "stored {}, expected {}", to_string(stored.shape),
              to_string(target.shape));
  if (target.device == kernels::Device::cpu) {
    parallel_for(*context.pool, stored.dim(0), kRowsAtATime, [&](int64_t begin, int64_t end) {
      kernels::convert_elements(stored.rows(begin, end), target.rows(begin, end));
    });
    return;
  }
  const int64_t rows = stored.dim(0);
  const int64_t row_elements = rows > 0 ? stored.num_elements() / rows : 0;
  const int64_t chunk =
      std::max<int64_t>(1, (int64_t{1} << 19) / std::max<int64_t>(1, row_elements));
  std::vector<std::byte> buffer;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const TensorView part = target.rows(begin, std::min(rows, begin + chunk));
    buffer.resize(part.num_bytes());
    TensorView host = part;
    host.data = buffer.data();
    host.device = kernels::Device::cpu;
    kernels::convert_elements(stored.rows(begin, std::min(rows, begin + chunk)), host);
    kernels::upload(context, buffer.data(), part);
  }
}

}  // namespace

namespace {

// Rows of heads, each `nope` rows of its key, then the rows of its value. Integers become the
// numbers they stand for: a transposed key would need scales along its other side.
void place_heads(const Context& context, const Placement& placement, const StoredTensor& stored) {
  StoredTensor numbers = stored;
  std::vector<std::byte> memory;
  if (stored.scale) numbers.elements = dequantised(stored, placement.key_up.n, memory);
  const int64_t nope = placement.key_up.k;
  const int64_t of_head = nope + placement.value_up.n;
  const int64_t rows = numbers.elements.dim(0);
  for (int64_t at = 0; at < rows;) {
    const int64_t head = (stored.row_begin + at) / of_head;
    const int64_t place = (stored.row_begin + at) % of_head;
    const bool is_key = place < nope;
    const int64_t end = std::min(rows, at + (is_key ? nope : of_head) - place);
    kernels::PackWeight pack{.source = numbers.elements.rows(at, end),
                             .target = is_key ? placement.key_up : placement.value_up,
                             .matrix_idx = head,
                             .row_begin = is_key ? place : place - nope};
    if (is_key) pack.order = kernels::PackOrder::transposed;
    kernels::pack_weight(context, pack);
    at = end;
  }
}

}  // namespace

void place_tensor(const Context& context, const Placement& placement, const StoredTensor& stored) {
  if (placement.key_up) return place_heads(context, placement, stored);
  const int64_t begin = stored.row_begin;
  const TensorView& elements = stored.elements;
  if (placement.values) {
    convert_values(context, elements, placement.values.rows(begin, begin + elements.dim(0)));
  }
  kernels::PackWeight pack{.source = elements,
                           .scale = stored.scale,
                           .matrix_idx = placement.matrix_idx,
                           .row_begin = placement.row_begin + begin};
  if (placement.weight) {
    pack.target = placement.weight;
    kernels::pack_weight(context, pack);
  }
  if (placement.transposed) {
    pack.target = placement.transposed;
    pack.order = kernels::PackOrder::transposed;
    kernels::pack_weight(context, pack);
  }
}

void load_parameters(const Context& context, const ParameterSet& parameters,
                     ParameterSource& source) {
  constexpr int64_t kPieceBytes = int64_t{16} << 20;  // what is mapped at a time beside the model
  const auto parameter_of = [&](const Placement& placement) -> const Parameter& {
    return parameters.inventory.parameters[placement.parameter];
  };
  std::vector<const Parameter*> expected;
  for (const Placement& placement : parameters.placements) {
    expected.push_back(&parameter_of(placement));
  }
  source.expect(expected);
  for (const Placement& placement : parameters.placements) {
    const Parameter& parameter = parameter_of(placement);
    const auto [whole, scale, first] = source.tensor(parameter);
    const int64_t rows = whole.dim(0);
    const int64_t row_bytes =
        rows > 0 ? std::max<int64_t>(1, static_cast<int64_t>(whole.num_bytes()) / rows) : 1;
    const int64_t step = std::max<int64_t>(kernels::kPanelWidth, kPieceBytes / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(rows, begin + step);
      place_tensor(context, placement,
                   {.elements = whole.rows(begin, end),
                    .scale = scale ? scale.rows(begin, end) : TensorView{},
                    .row_begin = first + begin});
      source.release_rows(parameter, begin, end);
    }
    source.release(parameter);
  }
}

}  // namespace dsmoe::model

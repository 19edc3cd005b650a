// What follows from a configuration by arithmetic: parameter counts, memory and work per token.
#include "model/config.h"
#include "model/inventory.h"

namespace dsmoe::model {
namespace {

// Counts all stacks but a tied head, whose parameters are the embedding's.
template <class Count>
int64_t sum_over_stacks(const ModelConfig& config, const Count& count) {
  int64_t sum = 0;
  for (const Stack& stack : stacks(config, share_of(config))) {
    if (!stack.repeats_embedding()) sum += count(stack);
  }
  return sum;
}

}  // namespace

int64_t ModelConfig::num_moe_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) count += is_moe_layer(layer) ? 1 : 0;
  return count;
}

int64_t ModelConfig::num_parameters() const {
  return sum_over_stacks(*this,
                         [](const Stack& stack) { return stack.count * stack.num_elements(); });
}

int64_t ModelConfig::num_active_parameters() const {
  return sum_over_stacks(*this,
                         [&](const Stack& stack) { return elements_per_token(*this, stack); });
}

int64_t ModelConfig::num_tensors() const {
  return sum_over_stacks(*this, [](const Stack& stack) {
    const int64_t per_part = stack.coding == tensor::WeightCoding::plain ? 1 : 2;
    return stack.count * static_cast<int64_t>(stack.parts.size()) * per_part;
  });
}

int64_t ModelConfig::kv_bytes_per_token(tensor::DType dtype) const {
  return num_hidden_layers * attention_shape(dtype).kv.position_bytes();
}

double ModelConfig::forward_flops_per_token(int64_t context) const {
  double weights = 0;
  for (const Stack& stack : stacks(*this, share_of(*this))) {
    if (is_matrix(kind_of(stack.role))) {
      weights += static_cast<double>(elements_per_token(*this, stack));
    }
  }
  const attention::Shape shape = attention_shape();
  const double attention =
      2.0 * static_cast<double>(num_hidden_layers * (shape.q_width() + shape.out_width())) *
      static_cast<double>(context);
  return 2.0 * weights + attention;
}

}  // namespace dsmoe::model

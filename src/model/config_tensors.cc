// What follows from a configuration by arithmetic: parameter counts, memory and work per token.
#include "model/config.h"
#include "model/inventory.h"
#include "model/rope_table.h"

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

attention::Shape ModelConfig::attention_shape(tensor::DType operand,
                                              attention::LatentForm form) const {
  attention::Shape shape{.hidden = hidden_size,
                         .heads = num_attention_heads,
                         .kv = {.dtype = operand,
                                .layout = kernels::WeightLayout::row_major,
                                .heads = num_key_value_heads,
                                .key_width = head_dim,
                                .value_width = head_dim},
                         .has_qk_norm = use_qk_norm,
                         .norm_eps = rms_norm_eps,
                         .score_factor = yarn_score_factor(*this),
                         .turns_whole_heads = rotary_width() == head_dim && !rope_interleave};
  if (rope_interleave) shape.rotation.pairs = kernels::RotaryPairs::neighbours;
  if (kv_lora_rank == 0) return shape;
  shape.norm_eps = 1e-6;  // whatever rms_norm_eps is: the published classes fix it
  shape.latent = {.kv_rank = kv_lora_rank,
                  .q_rank = q_lora_rank,
                  .nope = qk_nope_head_dim,
                  .rope = qk_rope_head_dim,
                  .value = v_head_dim,
                  .form = form};
  kernels::KvShape& kv = shape.kv;
  if (shape.latent.is_absorbed()) {
    kv.heads = 1;
    kv.key_width = kv_lora_rank + qk_rope_head_dim;
    kv.value_width = kv_lora_rank;
    kv.values = kernels::KvValues::prefix_of_key;
    shape.rotation.begin = kv_lora_rank;
  } else {
    kv.key_width = shape.latent.key();
    kv.value_width = v_head_dim;
    shape.rotation.begin = qk_nope_head_dim;
  }
  return shape;
}

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

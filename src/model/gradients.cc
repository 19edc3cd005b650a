// Stacked gradient buffers and the named slices of them.
#include "model/gradients.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/memory.h"

namespace dsmoe::model {
namespace {

class Allocation {
 public:
  Allocation(const Context& context, const ModelConfig& config, DType operand,
             FunctionRef<bool(const std::string&)> wanted, tensor::Arena& arena)
      : context_(context),
        config_(config),
        scalar_(kernels::scalar_type(operand)),
        wanted_(wanted),
        arena_(arena) {}

  // A tensor of its own; absent when not wanted.
  TensorView single(const std::string& name, const kernels::Shape& shape) {
    if (!wanted_(name)) return {};
    const TensorView view = arena_.tensor("gradients", scalar_, shape);
    add(name, view, false);
    return view;
  }

  // A matrix, as a stack of one.
  TensorView matrix(const std::string& name, int64_t n, int64_t k, bool is_assigned) {
    TensorView view = single(name, {n, k});
    if (!view) return view;
    view.shape = {1, n, k};
    named_.back().is_assigned = is_assigned;
    return view;
  }

  // q, k and v: one buffer if any of them is wanted. columns = 0: biases.
  TensorView qkv(const std::string& prefix, const std::string& suffix, int64_t columns) {
    const int64_t q = config_.q_width();
    const int64_t kv = config_.kv_width();
    const int64_t rows[] = {0, q, q + kv, q + 2 * kv};
    const std::string names[] = {prefix + "q_proj." + suffix, prefix + "k_proj." + suffix,
                                 prefix + "v_proj." + suffix};
    if (std::none_of(std::begin(names), std::end(names), wanted_)) return {};
    const int64_t total = q + 2 * kv;
    TensorView all = arena_.tensor(
        "gradients", scalar_, columns > 0 ? kernels::Shape{total, columns} : kernels::Shape{total});
    for (int part = 0; part < 3; ++part) {
      if (wanted_(names[part])) add(names[part], all.rows(rows[part], rows[part + 1]), columns > 0);
    }
    if (columns > 0) all.shape = {1, total, columns};
    return all;
  }

  // Experts prefix + "0." and so on, or the single one `prefix`; only those wanted get a slot.
  moe::ExpertGradients experts(const std::vector<std::string>& prefixes, int64_t width) {
    const int64_t hidden = config_.hidden_size;
    const std::string kinds[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
    std::vector<int32_t> slot_of_expert;
    int32_t num_slots = 0;
    for (const std::string& prefix : prefixes) {
      const bool any = std::any_of(std::begin(kinds), std::end(kinds),
                                   [&](const std::string& kind) { return wanted_(prefix + kind); });
      slot_of_expert.push_back(any ? num_slots++ : -1);
    }
    if (num_slots == 0) return {};
    moe::ExpertGradients gradients{
        .gate = arena_.tensor("gradients", scalar_, {num_slots, width, hidden}),
        .up = arena_.tensor("gradients", scalar_, {num_slots, width, hidden}),
        .down = arena_.tensor("gradients", scalar_, {num_slots, hidden, width})};
    const TensorView stacks[] = {gradients.gate, gradients.up, gradients.down};
    for (std::size_t e = 0; e < prefixes.size(); ++e) {
      for (int kind = 0; kind < 3; ++kind) {
        if (slot_of_expert[e] < 0 || !wanted_(prefixes[e] + kinds[kind])) continue;
        TensorView slice = stacks[kind].rows(slot_of_expert[e], slot_of_expert[e] + 1);
        slice.shape = {slice.dim(1), slice.dim(2)};
        add(prefixes[e] + kinds[kind], slice, true);
      }
    }
    if (num_slots < static_cast<int32_t>(prefixes.size())) {
      gradients.slot_of_expert =
          arena_.tensor("gradients", DType::I32, {static_cast<int64_t>(slot_of_expert.size())});
      kernels::upload(context_, slot_of_expert.data(), gradients.slot_of_expert);
    }
    return gradients;
  }

  moe::LayerGradients ffn(int64_t layer, const std::string& prefix) {
    moe::LayerGradients gradients;
    if (!config_.is_moe_layer(layer)) {
      gradients.shared = experts({prefix}, config_.intermediate_size);
      return gradients;
    }
    gradients.centroids =
        matrix(prefix + "gate.weight", config_.n_routed_experts, config_.hidden_size, false);
    std::vector<std::string> prefixes;
    for (int64_t e = 0; e < config_.n_routed_experts; ++e) {
      prefixes.push_back(prefix + "experts." + std::to_string(e) + ".");
    }
    gradients.routed = experts(prefixes, config_.moe_intermediate_size);
    if (config_.n_shared_experts > 0) {
      gradients.shared = experts({prefix + "shared_experts."}, config_.shared_width());
    }
    return gradients;
  }

  // The head's part of a tied embedding, found under the embedding's name.
  TensorView tied_head(const std::string& name, int64_t n, int64_t k) {
    const auto entry = std::find_if(named_.begin(), named_.end(),
                                    [&](const NamedGradient& g) { return g.name == name; });
    if (entry == named_.end()) return {};
    TensorView view = arena_.tensor("gradients", scalar_, {n, k});
    entry->second_part = view;
    view.shape = {1, n, k};
    return view;
  }

  std::vector<NamedGradient> take_named() {
    std::sort(named_.begin(), named_.end(),
              [](const NamedGradient& a, const NamedGradient& b) { return a.name < b.name; });
    return std::move(named_);
  }

 private:
  void add(const std::string& name, const TensorView& view, bool is_assigned) {
    named_.push_back({.name = name, .gradient = view, .is_assigned = is_assigned});
  }

  const Context& context_;
  const ModelConfig& config_;
  DType scalar_;
  FunctionRef<bool(const std::string&)> wanted_;
  tensor::Arena& arena_;
  std::vector<NamedGradient> named_;
};

}  // namespace

GradientBuffers allocate_gradients(const Context& context, const ModelConfig& config, DType operand,
                                   FunctionRef<bool(const std::string& name)> wanted,
                                   tensor::Arena& arena) {
  Allocation allocation(context, config, operand, wanted, arena);
  const std::string embedding = "model.embed_tokens.weight";
  const int64_t hidden = config.hidden_size;
  GradientBuffers buffers;
  Gradients& views = buffers.views;
  views.embedding = allocation.single(embedding, {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    BlockGradients block;
    block.attention_norm = allocation.single(prefix + "input_layernorm.weight", {hidden});
    block.qkv = allocation.qkv(attention, "weight", hidden);
    block.out = allocation.matrix(attention + "o_proj.weight", hidden, config.q_width(), true);
    if (config.attention_bias) {
      block.qkv_bias = allocation.qkv(attention, "bias", 0);
      block.out_bias = allocation.single(attention + "o_proj.bias", {hidden});
    }
    block.ffn_norm = allocation.single(prefix + "post_attention_layernorm.weight", {hidden});
    block.ffn = allocation.ffn(layer, prefix + "mlp.");
    views.blocks.push_back(block);
  }
  views.final_norm = allocation.single("model.norm.weight", {hidden});
  views.head = config.tie_word_embeddings
                   ? allocation.tied_head(embedding, config.vocab_size, hidden)
                   : allocation.matrix("lm_head.weight", config.vocab_size, hidden, true);
  buffers.named = allocation.take_named();
  return buffers;
}

}  // namespace dsmoe::model

// The tables of names.
#include "model/parameter_names.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace dsmoe::model {
namespace {

constexpr RoleName kDeepseek[] = {
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::attention_norm, "model.layers.{layer}.input_layernorm.weight"},
    {Role::query, "model.layers.{layer}.self_attn.q_proj.weight"},
    {Role::key, "model.layers.{layer}.self_attn.k_proj.weight"},
    {Role::value, "model.layers.{layer}.self_attn.v_proj.weight"},
    {Role::attention_out, "model.layers.{layer}.self_attn.o_proj.weight"},
    {Role::query_bias, "model.layers.{layer}.self_attn.q_proj.bias"},
    {Role::key_bias, "model.layers.{layer}.self_attn.k_proj.bias"},
    {Role::value_bias, "model.layers.{layer}.self_attn.v_proj.bias"},
    {Role::attention_out_bias, "model.layers.{layer}.self_attn.o_proj.bias"},
    {Role::query_norm, "model.layers.{layer}.self_attn.q_norm.weight"},
    {Role::key_norm, "model.layers.{layer}.self_attn.k_norm.weight"},
    {Role::query_down, "model.layers.{layer}.self_attn.q_a_proj.weight"},
    {Role::query_down_norm, "model.layers.{layer}.self_attn.q_a_layernorm.weight"},
    {Role::query_up, "model.layers.{layer}.self_attn.q_b_proj.weight"},
    {Role::key_value_down, "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight"},
    {Role::key_value_norm, "model.layers.{layer}.self_attn.kv_a_layernorm.weight"},
    {Role::key_value_up, "model.layers.{layer}.self_attn.kv_b_proj.weight"},
    {Role::ffn_norm, "model.layers.{layer}.post_attention_layernorm.weight"},
    {Role::router, "model.layers.{layer}.mlp.gate.weight"},
    {Role::selection_bias, "model.layers.{layer}.mlp.gate.e_score_correction_bias"},
    {Role::routed_gate, "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"},
    {Role::routed_up, "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"},
    {Role::routed_down, "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"},
    {Role::shared_gate, "model.layers.{layer}.mlp.shared_experts.gate_proj.weight"},
    {Role::shared_up, "model.layers.{layer}.mlp.shared_experts.up_proj.weight"},
    {Role::shared_down, "model.layers.{layer}.mlp.shared_experts.down_proj.weight"},
    {Role::shared_expert_gate, "model.layers.{layer}.mlp.shared_expert_gate.weight"},
    {Role::dense_gate, "model.layers.{layer}.mlp.gate_proj.weight"},
    {Role::dense_up, "model.layers.{layer}.mlp.up_proj.weight"},
    {Role::dense_down, "model.layers.{layer}.mlp.down_proj.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::head, "lm_head.weight"},
};

// One shared expert, in the singular.
constexpr auto kQwen2Moe = [] {
  auto names = std::to_array(kDeepseek);
  for (RoleName& name : names) {
    if (name.role == Role::shared_gate)
      name.pattern = "model.layers.{layer}.mlp.shared_expert.gate_proj.weight";
    if (name.role == Role::shared_up)
      name.pattern = "model.layers.{layer}.mlp.shared_expert.up_proj.weight";
    if (name.role == Role::shared_down)
      name.pattern = "model.layers.{layer}.mlp.shared_expert.down_proj.weight";
  }
  return names;
}();

}  // namespace

constinit const NameMap kDeepseekNames = kDeepseek;
constinit const NameMap kQwen2MoeNames = kQwen2Moe;

std::string name_of(NameMap names, Role role, int64_t layer, int64_t expert) {
  const auto entry = std::find_if(names.begin(), names.end(),
                                  [&](const RoleName& name) { return name.role == role; });
  DSMOE_CHECK(entry != names.end(), "the names have none for role {}", static_cast<int>(role));
  return name_of(*entry, layer, expert);
}

std::string name_of(const RoleName& entry, int64_t layer, int64_t expert) {
  return fmt::format(fmt::runtime(entry.pattern), fmt::arg("layer", layer),
                     fmt::arg("expert", expert < 0 ? "*" : std::to_string(expert)));
}

bool names_expert(const RoleName& entry) {
  return entry.pattern.find("{expert}") != std::string_view::npos;
}

}  // namespace dsmoe::model

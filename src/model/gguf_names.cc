// The tables, from one of what they share.
#include "model/gguf_names.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

namespace dsmoe::model {
namespace {

constexpr std::array kTensors = {
    RoleName{Role::embedding, "token_embd.weight"},
    RoleName{Role::attention_norm, "blk.{layer}.attn_norm.weight"},
    RoleName{Role::query, "blk.{layer}.attn_q.weight"},
    RoleName{Role::key, "blk.{layer}.attn_k.weight"},
    RoleName{Role::value, "blk.{layer}.attn_v.weight"},
    RoleName{Role::attention_out, "blk.{layer}.attn_output.weight"},
    RoleName{Role::query_bias, "blk.{layer}.attn_q.bias"},
    RoleName{Role::key_bias, "blk.{layer}.attn_k.bias"},
    RoleName{Role::value_bias, "blk.{layer}.attn_v.bias"},
    RoleName{Role::query_norm, "blk.{layer}.attn_q_norm.weight"},
    RoleName{Role::key_norm, "blk.{layer}.attn_k_norm.weight"},
    RoleName{Role::ffn_norm, "blk.{layer}.ffn_norm.weight"},
    RoleName{Role::router, "blk.{layer}.ffn_gate_inp.weight"},
    RoleName{Role::selection_bias, "blk.{layer}.exp_probs_b.bias"},
    RoleName{Role::routed_gate, "blk.{layer}.ffn_gate_exps.weight"},
    RoleName{Role::routed_up, "blk.{layer}.ffn_up_exps.weight"},
    RoleName{Role::routed_down, "blk.{layer}.ffn_down_exps.weight"},
    RoleName{Role::shared_gate, "blk.{layer}.ffn_gate_shexp.weight"},
    RoleName{Role::shared_up, "blk.{layer}.ffn_up_shexp.weight"},
    RoleName{Role::shared_down, "blk.{layer}.ffn_down_shexp.weight"},
    RoleName{Role::dense_gate, "blk.{layer}.ffn_gate.weight"},
    RoleName{Role::dense_up, "blk.{layer}.ffn_up.weight"},
    RoleName{Role::dense_down, "blk.{layer}.ffn_down.weight"},
    RoleName{Role::final_norm, "output_norm.weight"},
    RoleName{Role::head, "output.weight"},
};
using Table = std::remove_const_t<decltype(kTensors)>;

// llama.cpp rotates neighbouring rows of a head there: files hold q and k in that order.
constexpr Table kDeepseekTensors = [] {
  Table table = kTensors;
  for (RoleName& name : table) {
    if (name.role == Role::query || name.role == Role::key) name.order = Order::rotary_pairs;
  }
  return table;
}();

constexpr Table kGlm4MoeTensors = [] {
  Table table = kTensors;
  for (RoleName& name : table) {
    if (name.role == Role::ffn_norm) name.pattern = "blk.{layer}.post_attention_norm.weight";
  }
  return table;
}();

constexpr std::array kArchitectures = {GgufArchitecture{kDeepseekArch, kDeepseekTensors},
                                       GgufArchitecture{kGlm4MoeArch, kGlm4MoeTensors},
                                       GgufArchitecture{kQwen3MoeArch, kTensors}};

}  // namespace

const GgufArchitecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find(kArchitectures, name, &GgufArchitecture::name);
  return found == kArchitectures.end() ? nullptr : found;
}

std::string names_of_architectures() {
  std::string names;
  for (const GgufArchitecture& known : kArchitectures) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", known.name);
  }
  return names;
}

}  // namespace dsmoe::model

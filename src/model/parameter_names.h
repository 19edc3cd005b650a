// What parameters are for, and what files call them: one table per naming, apart from the structure
// of a model (inventory.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe::model {

// q, k and v are apart here, whatever memory they share. The shared experts of a layer count as
// one.
enum class Role : uint8_t {
  embedding,
  attention_norm,
  query,
  key,
  value,
  attention_out,
  query_bias,
  key_bias,
  value_bias,
  attention_out_bias,
  ffn_norm,
  router,          // the centroids e_i
  selection_bias,  // e_score_correction_bias
  routed_gate,
  routed_up,
  routed_down,
  shared_gate,
  shared_up,
  shared_down,
  dense_gate,
  dense_up,
  dense_down,
  final_norm,
  head,
};

// "{layer}" and "{expert}" in a pattern stand for those numbers.
struct RoleName {
  Role role;
  std::string_view pattern;
};
using NameMap = std::span<const RoleName>;

// Of model_type deepseek and dsmoe.
extern const NameMap kDeepseekNames;

// expert -1: "*", any. Throws Error(internal) when the map has no name for the role.
std::string name_of(NameMap names, Role role, int64_t layer, int64_t expert);

}  // namespace dsmoe::model

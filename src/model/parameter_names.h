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
  query_norm,  // of each head, like the next
  key_norm,
  query_down,  // to the latent of queries, which query_up reads normalised
  query_down_norm,
  query_up,
  key_value_down,  // to the latent of keys and values, and what all heads share
  key_value_norm,
  key_value_up,
  ffn_norm,
  router,          // the centroids e_i
  selection_bias,  // e_score_correction_bias
  routed_gate,
  routed_up,
  routed_down,
  shared_gate,
  shared_up,
  shared_down,
  shared_expert_gate,  // [1, hidden]
  dense_gate,
  dense_up,
  dense_down,
  final_norm,
  head,
};

// How a tensor of a file holds the rows of a parameter.
enum class Order : uint8_t {
  as_is,         // [rows, columns], or [rows]
  transposed,    // [columns, rows]
  rotary_pairs,  // of each head, row 2i is row i and row 2i + 1 is row i + head_dim / 2
};

// One of `count` equal ranges of rows.
struct Part {
  int64_t index = 0, count = 1;
};

// "{layer}" and "{expert}" in a pattern stand for those numbers. A pattern of a routed role without
// "{expert}" names one tensor for all experts, [experts, ...]. `part`: where one tensor holds
// several parameters, such as gate above up, which of them this is. Several entries for one role
// are tensors whose rows together, in equal shares, are the parameter.
struct RoleName {
  Role role;
  std::string_view pattern;
  Part part = {};
  Order order = Order::as_is;
};
using NameMap = std::span<const RoleName>;

// Of every model_type but qwen2_moe. Also what this program itself calls parameters, whatever files
// call them: seeds of random weights, the order of sums and checkpoints depend on these names.
extern const NameMap kDeepseekNames;
extern const NameMap kQwen2MoeNames;

bool names_expert(const RoleName& entry);
// expert -1: "*", any.
std::string name_of(const RoleName& entry, int64_t layer, int64_t expert);
// Throws Error(internal) when the map has no name for the role.
std::string name_of(NameMap names, Role role, int64_t layer, int64_t expert);

}  // namespace dsmoe::model

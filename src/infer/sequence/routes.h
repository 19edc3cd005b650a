// The experts that tokens took: one type for sessions, the engine, what it keeps and what it hands
// out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/language_model.h"

namespace dsmoe::infer {

std::vector<int64_t> moe_layers(const model::ModelConfig& config);  // ascending

// [tokens, MoE layers, top_k]: the strongest first, -1 absent.
struct RoutesView {
  int64_t num_tokens = 0;
  int64_t num_layers = 0;
  int64_t top_k = 0;
  std::span<const int32_t> index;
  std::span<const float> gate;

  RoutesView tokens(int64_t begin, int64_t end) const;
  // Of one token in one MoE layer, by its place among them: one token, one layer.
  RoutesView slots(int64_t token, int64_t layer_idx) const;
};

// The same, and the memory for it.
struct Routes {
  int64_t num_layers = 0;
  int64_t top_k = 0;
  std::vector<int32_t> index;
  std::vector<float> gate;

  std::size_t slots_per_token() const { return static_cast<std::size_t>(num_layers * top_k); }
  int64_t num_tokens() const {
    return index.empty() ? 0 : static_cast<int64_t>(index.size() / slots_per_token());
  }
  RoutesView view() const;
  RoutesView tokens(int64_t begin, int64_t end) const { return view().tokens(begin, end); }

  // Of more slots per layer the first, which are all that the tokens took.
  void append(const RoutesView& more);
  Routes take_front(int64_t num_tokens);  // and forgets them
  void truncate(int64_t num_tokens);
  void clear() { truncate(0); }
};

// What the pass chose in its last run, with KeepRouting::yes, in place of what `routes` held.
// Throws as ForwardPass::read() does.
void read_routes(const kernels::Context& context, model::ForwardPass& pass, Routes& routes);

}  // namespace dsmoe::infer

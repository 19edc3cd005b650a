// Cutting and joining of routes, and their way from the device, where layers come first.
#include "infer/sequence/routes.h"

#include <algorithm>

#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::infer {

std::vector<int64_t> moe_layers(const model::ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer(layer)) layers.push_back(layer);
  }
  return layers;
}

RoutesView RoutesView::tokens(int64_t begin, int64_t end) const {
  const auto first = static_cast<std::size_t>(begin * num_layers * top_k);
  const auto count = static_cast<std::size_t>((end - begin) * num_layers * top_k);
  RoutesView part = *this;
  part.num_tokens = end - begin;
  part.index = index.subspan(first, count);
  part.gate = gate.subspan(first, count);
  return part;
}

RoutesView RoutesView::slots(int64_t token, int64_t layer_idx) const {
  const auto first = static_cast<std::size_t>((token * num_layers + layer_idx) * top_k);
  return {.num_tokens = 1,
          .num_layers = 1,
          .top_k = top_k,
          .index = index.subspan(first, static_cast<std::size_t>(top_k)),
          .gate = gate.subspan(first, static_cast<std::size_t>(top_k))};
}

RoutesView Routes::view() const {
  return {.num_tokens = num_tokens(),
          .num_layers = num_layers,
          .top_k = top_k,
          .index = index,
          .gate = gate};
}

void Routes::append(const RoutesView& more) {
  const std::size_t size =
      index.size() + static_cast<std::size_t>(more.num_tokens) * slots_per_token();
  index.reserve(size);  // both or none
  gate.reserve(size);
  for (int64_t row = 0; row < more.num_tokens * num_layers; ++row) {
    const auto from = static_cast<std::size_t>(row * more.top_k);
    const auto count = static_cast<std::size_t>(top_k);
    const auto indices = more.index.subspan(from, count);
    const auto gates = more.gate.subspan(from, count);
    index.insert(index.end(), indices.begin(), indices.end());
    gate.insert(gate.end(), gates.begin(), gates.end());
  }
}

Routes Routes::take_front(int64_t count) {
  const auto end = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * slots_per_token());
  Routes front{.num_layers = num_layers,
               .top_k = top_k,
               .index = {index.begin(), index.begin() + end},
               .gate = {gate.begin(), gate.begin() + end}};
  index.erase(index.begin(), index.begin() + end);
  gate.erase(gate.begin(), gate.begin() + end);
  return front;
}

void Routes::truncate(int64_t count) {
  index.resize(static_cast<std::size_t>(count) * slots_per_token());
  gate.resize(index.size());
}

void read_routes(const kernels::Context& context, model::ForwardPass& pass, Routes& routes) {
  const auto& [device_index, device_gate] = pass.routing();
  routes.num_layers = device_index ? device_index.dim(0) : 0;
  routes.top_k = device_index ? device_index.dim(2) : 0;
  const int64_t tokens = device_index ? device_index.dim(1) : 0;
  std::vector<int32_t> index(static_cast<std::size_t>(tokens) * routes.slots_per_token());
  std::vector<float> gate(index.size());
  routes.truncate(tokens);
  if (index.empty()) return;
  pass.read(device_index, index.data());
  kernels::download(context, device_gate, gate.data());
  for (int64_t layer = 0; layer < routes.num_layers; ++layer) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t from = (layer * tokens + t) * routes.top_k;
      const int64_t to = (t * routes.num_layers + layer) * routes.top_k;
      std::copy_n(index.begin() + from, routes.top_k, routes.index.begin() + to);
      std::copy_n(gate.begin() + from, routes.top_k, routes.gate.begin() + to);
    }
  }
}

}  // namespace dsmoe::infer

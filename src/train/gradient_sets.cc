// Dense parameters and routed experts have different numbers of shards, so they are allocated
// apart.
#include "train/gradient_sets.h"

#include <algorithm>

#include "base/error.h"

namespace dsmoe::train {
namespace {

bool is_routed(const model::Parameter& parameter) { return parameter.expert >= 0; }

}  // namespace

GradientSets::GradientSets(const kernels::Context& context, const model::Model& model,
                           const RankLayout& layout, FunctionRef<bool(const std::string&)> trains,
                           tensor::Arena& arena)
    : layout_(layout) {
  const auto allocate = [&](bool routed) {
    return model::allocate_gradients(
        context, model.parameters.inventory, model.operand,
        [&](const model::Parameter& parameter) {
          return is_routed(parameter) == routed && trains(parameter.name);
        },
        arena);
  };
  for (int64_t j = 0; j < layout.dense_buffers(); ++j) dense_.push_back(allocate(false));
  for (int64_t a = 0; a < layout.expert_buffers(); ++a) routed_.push_back(allocate(true));
  for (const model::GradientBuffers& dense : dense_) {
    for (const model::GradientBuffers& routed : routed_) {
      model::Gradients& views = views_.emplace_back(dense.views);
      for (std::size_t layer = 0; layer < views.blocks.size(); ++layer)
        views.blocks[layer].ffn.routed = routed.views.blocks[layer].ffn.routed;
    }
  }
  first_ = {.views = views_[0], .named = dense_[0].named};
  first_.named.insert(first_.named.end(), routed_[0].named.begin(), routed_[0].named.end());
  std::sort(first_.named.begin(), first_.named.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

const model::Gradients& GradientSets::of_block(int64_t block) const {
  // Where several expert ranks bring units, of_units() says where those go.
  const int64_t routed = layout_.expert_ranks == 1 ? layout_.expert_buffer_of(block, 0) : 0;
  return views_[static_cast<std::size_t>(
      layout_.dense_buffer_of_block(block) * layout_.expert_buffers() + routed)];
}

std::span<const model::Gradients* const> GradientSets::of_units(int64_t block) {
  of_units_.clear();
  if (layout_.expert_ranks == 1 || layout_.expert_buffers() == 1) return of_units_;
  for (int64_t e = 0; e < layout_.expert_ranks; ++e) {
    const auto buffer = static_cast<std::size_t>(layout_.expert_buffer_of(block, e));
    of_units_.push_back(&routed_[buffer].views);
  }
  return of_units_;
}

std::vector<model::NamedGradient> GradientSets::shards_of(std::size_t idx) const {
  const std::string& name = first_.named[idx].name;
  const auto add_from = [&](const std::vector<model::GradientBuffers>& sets) {
    std::vector<model::NamedGradient> found;
    for (const model::GradientBuffers& set : sets) {
      const auto at = std::lower_bound(set.named.begin(), set.named.end(), name,
                                       [](const model::NamedGradient& gradient,
                                          const std::string& n) { return gradient.name < n; });
      if (at != set.named.end() && at->name == name) found.push_back(*at);
    }
    return found;
  };
  std::vector<model::NamedGradient> shards = add_from(dense_);
  return shards.empty() ? add_from(routed_) : shards;
}

}  // namespace dsmoe::train

// Statistics of integer loads.
#include "train/routing_stats.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dsmoe::train {

LayerLoad describe_load(std::span<const int64_t> load, int64_t top_k) {
  const auto num_experts = static_cast<double>(load.size());
  const auto total = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
  LayerLoad result;
  for (const int64_t count : load) {
    const double share = total > 0 ? static_cast<double>(count) / total : 0;
    result.ratio.push_back(share * num_experts);
    if (count == 0) ++result.dead;
    if (share > 0) result.entropy -= share * std::log(share);
  }
  if (num_experts > 1) result.entropy /= std::log(num_experts);
  std::vector<double> sorted = result.ratio;
  std::sort(sorted.rbegin(), sorted.rend());
  if (!sorted.empty()) result.max_ratio = sorted.front();
  sorted.resize(std::min(sorted.size(), static_cast<std::size_t>(std::max<int64_t>(0, top_k))));
  result.top_share = std::accumulate(sorted.begin(), sorted.end(), 0.0) / num_experts;
  return result;
}

CollapseWatch::CollapseWatch(std::vector<int64_t> layers, int64_t num_experts, int64_t top_k)
    : layers_(std::move(layers)),
      num_experts_(num_experts),
      top_k_(top_k),
      sums_(layers_.size(), std::vector<int64_t>(static_cast<std::size_t>(num_experts), 0)),
      warned_(layers_.size(), false) {}

std::vector<std::string> CollapseWatch::add(std::span<const std::vector<int64_t>> load) {
  std::vector<std::string> warnings;
  const auto change = [&](const std::vector<std::vector<int64_t>>& step, int64_t sign) {
    for (std::size_t layer = 0; layer < sums_.size(); ++layer) {
      for (std::size_t e = 0; e < sums_[layer].size(); ++e)
        sums_[layer][e] += sign * step[layer][e];
    }
  };
  window_.emplace_back(load.begin(), load.end());
  change(window_.back(), 1);
  if (window_.size() < kWindow) return warnings;
  if (window_.size() > kWindow) {
    change(window_.front(), -1);
    window_.pop_front();
  }
  // Three quarters of the way from an even load to all of it on K experts.
  const double even = static_cast<double>(top_k_) / static_cast<double>(num_experts_);
  for (std::size_t layer = 0; layer < sums_.size() && top_k_ < num_experts_; ++layer) {
    const LayerLoad state = describe_load(sums_[layer], top_k_);
    const bool collapsed = state.top_share > (even + 3) / 4 || 2 * state.dead > num_experts_;
    if (collapsed && !warned_[layer]) {
      warnings.push_back(fmt::format(
          "routing has collapsed in layer {}: over the last {} steps {} of {} experts took {:.0f} "
          "% "
          "of the tokens and {} got none, so most of the model is idle; raise aux_loss_alpha in "
          "the config, or lower --lr",
          layers_[layer], kWindow, top_k_, num_experts_, 100 * state.top_share, state.dead));
    }
    warned_[layer] = collapsed;
  }
  return warnings;
}

}  // namespace dsmoe::train

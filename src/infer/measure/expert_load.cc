// Counters behind one lock, taken once per step.
#include "infer/measure/expert_load.h"

#include <algorithm>

namespace dsmoe::infer {
namespace {

std::vector<ExpertLoad::Layer> zeros(const std::vector<int64_t>& layers, int64_t num_experts) {
  std::vector<ExpertLoad::Layer> counts;
  const std::vector<int64_t> none(static_cast<std::size_t>(num_experts), 0);
  for (const int64_t layer : layers) {
    counts.push_back({.layer = layer, .chosen = none, .first = none});
  }
  return counts;
}

// The frequent half stays.
void prune(std::unordered_map<int32_t, int64_t>& counts) {
  std::vector<int64_t> values;
  for (const auto& [token, count] : counts) values.push_back(count);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const int64_t limit = *middle;
  std::erase_if(counts, [&](const auto& entry) { return entry.second <= limit; });
}

}  // namespace

ExpertLoad::ExpertLoad(std::vector<int64_t> layers, int64_t num_experts, int64_t vocabulary)
    : layers_(std::move(layers)),
      num_experts_(num_experts),
      window_(zeros(layers_, num_experts)),
      totals_(window_),
      seen_(static_cast<std::size_t>(vocabulary), 0),
      tokens_of_expert_(layers_.size() * static_cast<std::size_t>(num_experts)) {}

void ExpertLoad::add(std::span<const int32_t> tokens, std::span<const int32_t> index,
                     int64_t top_k) {
  const std::lock_guard lock(mutex_);
  num_tokens_ += static_cast<int64_t>(tokens.size());
  std::size_t slot = 0;
  for (const int32_t token : tokens) {
    ++seen_[static_cast<std::size_t>(token)];
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (int64_t k = 0; k < top_k; ++k, ++slot) {
        if (index[slot] < 0) continue;
        const auto expert = static_cast<std::size_t>(index[slot]);
        ++window_[l].chosen[expert];
        ++totals_[l].chosen[expert];
        if (k == 0) {
          ++window_[l].first[expert];
          ++totals_[l].first[expert];
        }
        Counts& counts = tokens_of_expert_[l * static_cast<std::size_t>(num_experts_) + expert];
        ++counts[token];
        if (counts.size() > kMaxTokens) prune(counts);
      }
    }
  }
}

void ExpertLoad::reset() {
  const std::lock_guard lock(mutex_);
  window_ = zeros(layers_, num_experts_);
  std::fill(seen_.begin(), seen_.end(), 0);
  for (Counts& counts : tokens_of_expert_) counts.clear();
  num_tokens_ = 0;
  since_ = std::chrono::steady_clock::now();
}

ExpertLoad::Window ExpertLoad::window() const {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> age = std::chrono::steady_clock::now() - since_;
  return {.seconds = age.count(), .tokens = num_tokens_, .layers = window_};
}

std::vector<ExpertLoad::Layer> ExpertLoad::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

std::vector<ExpertLoad::TokenCount> ExpertLoad::top_tokens(std::size_t layer_idx, int64_t expert,
                                                           const TokenQuery& query) const {
  std::vector<TokenCount> result;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t place =
        layer_idx * static_cast<std::size_t>(num_experts_) + static_cast<std::size_t>(expert);
    for (const auto& [token, count] : tokens_of_expert_.at(place)) {
      if (count < query.min_count) continue;
      result.push_back(
          {.token = token, .count = count, .seen = seen_[static_cast<std::size_t>(token)]});
    }
  }
  const bool by_lift = query.order == Order::lift;
  std::sort(result.begin(), result.end(), [&](const TokenCount& a, const TokenCount& b) {
    const double lift_a = static_cast<double>(a.count) / static_cast<double>(a.seen);
    const double lift_b = static_cast<double>(b.count) / static_cast<double>(b.seen);
    if (by_lift && lift_a != lift_b) return lift_a > lift_b;
    return a.count > b.count || (a.count == b.count && a.token < b.token);
  });
  if (static_cast<int64_t>(result.size()) > query.limit) {
    result.resize(static_cast<std::size_t>(query.limit));
  }
  return result;
}

}  // namespace dsmoe::infer

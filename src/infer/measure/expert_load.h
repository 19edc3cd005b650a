// How often each expert was chosen, and for which tokens, over a window of served traffic.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace dsmoe::infer {

// Counted by the engine's thread, read by any.
class ExpertLoad {
 public:
  ExpertLoad(std::vector<int64_t> layers, int64_t num_experts, int64_t vocabulary);

  // `index` [tokens, MoE layers, top_k], -1 absent, strongest first.
  void add(std::span<const int32_t> tokens, std::span<const int32_t> index, int64_t top_k);
  void reset();

  struct Layer {
    int64_t layer = 0;            // the model's number
    std::vector<int64_t> chosen;  // [experts] tokens that took it
    std::vector<int64_t> first;   // [experts] tokens whose strongest it was
  };
  struct Window {
    double seconds = 0;
    int64_t tokens = 0;
    std::vector<Layer> layers;
  };
  Window window() const;
  // Since start, whatever was reset: for counters that may only grow.
  std::vector<Layer> totals() const;

  struct TokenCount {
    int32_t token = 0;
    int64_t count = 0;  // times it took the expert
    int64_t seen = 0;   // times it was forwarded at all
  };
  // lift: by count / seen, which for one expert is the order of the lifts; equal ones by count.
  enum class Order { count, lift };
  struct TokenQuery {
    int64_t limit = 0;
    int64_t min_count = 1;  // a rare token's lift says little
    Order order = Order::count;
  };
  // The tokens that took the expert, descending, ties by lower id. Exact while an expert has seen
  // at most kMaxTokens different ones; above that, rare ones are forgotten first.
  std::vector<TokenCount> top_tokens(std::size_t layer_idx, int64_t expert,
                                     const TokenQuery& query) const;

  const std::vector<int64_t>& layers() const { return layers_; }
  int64_t num_experts() const { return num_experts_; }

 private:
  static constexpr std::size_t kMaxTokens = 1024;
  using Counts = std::unordered_map<int32_t, int64_t>;

  std::vector<int64_t> layers_;
  int64_t num_experts_;
  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  int64_t num_tokens_ = 0;
  std::vector<Layer> window_, totals_;
  std::vector<int64_t> seen_;             // [vocabulary]
  std::vector<Counts> tokens_of_expert_;  // [layers * experts]
};

}  // namespace dsmoe::infer

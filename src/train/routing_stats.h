// What the experts' loads say: ratios to the fair share, dead experts, entropy, collapse.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dsmoe::train {

struct LayerLoad {
  std::vector<double> ratio;  // per expert: its tokens / the mean over experts
  double max_ratio = 0;
  int64_t dead = 0;    // experts without any token
  double entropy = 0;  // of the shares of load, divided by its largest value ln(experts): 1 is even
  double top_share = 0;  // share of the load that the `top_k` busiest experts take
};
LayerLoad describe_load(std::span<const int64_t> load, int64_t top_k);

// Looks at the loads of the last steps together and speaks once per collapse and layer.
class CollapseWatch {
 public:
  CollapseWatch(std::vector<int64_t> layers, int64_t num_experts, int64_t top_k);

  // One step's loads, [MoE layer][expert]. Returns warnings in plain words.
  std::vector<std::string> add(std::span<const std::vector<int64_t>> load);

 private:
  static constexpr std::size_t kWindow = 50;

  std::vector<int64_t> layers_;
  int64_t num_experts_, top_k_;
  std::deque<std::vector<std::vector<int64_t>>> window_;
  std::vector<std::vector<int64_t>> sums_;  // of the window
  std::vector<bool> warned_;
};

}  // namespace dsmoe::train

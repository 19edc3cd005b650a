// What the router chooses by: published variants as data.
#pragma once

#include <cstdint>

namespace dsmoe::kernels {

enum class ScoreFunction : uint8_t { softmax, sigmoid };
enum class GroupScore : uint8_t { max, sum_of_best_two };
enum class ScaleGates : uint8_t { unless_normalised, always };

// DeepSeekMoE = the defaults; V2 = groups by max; V3 = sigmoid, bias,
// groups by best two.
struct RouterRule {
  ScoreFunction score = ScoreFunction::softmax;
  int top_k = 0;       // slots per token; a token may take fewer
  int skip_best = 0;   // so many of the best that could be chosen are passed over: what a model
                       // does without the experts it wants
  int num_groups = 1;  // experts are split into equal consecutive groups
  int top_groups = 1;  // only the best groups may be chosen from
  GroupScore group_score = GroupScore::max;
  bool normalise =
      false;  // divide the gates by their sum + 1e-20 (only when the token takes more than one)
  float scale = 1.0f;
  ScaleGates scale_gates = ScaleGates::unless_normalised;
};

// A row of RouterForward::replayed_index that starts with it chooses as if there were no replay.
inline constexpr int32_t kChooseFreely = -2;

}  // namespace dsmoe::kernels

// The router: affinity of every token to every routed expert, the choice of the top K, and their
// gates.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

enum class ScoreFunction : uint8_t { softmax, sigmoid };
enum class GroupScore : uint8_t { max, sum_of_best_two };
enum class ScaleGates : uint8_t { unless_normalised, always };

// Published variants as data: DeepSeekMoE = the defaults; V2 = groups by max; V3 = sigmoid, bias,
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

// s = score(x . e_i); selection by s + selection_bias, descending, ties by lower index; gates from
// the unbiased s. Slots are stored by descending selection score; absent slots have index -1 and
// gate 0.
struct RouterForward {
  RouterRule rule;
  TensorView x;                 // [tokens, hidden], operand type
  WeightStack centroids;        // one matrix [experts, hidden], F32 (F64 for F64): the stored gate
                                // weight, widened
  TensorView selection_bias;    // [experts] F32 (F64), or absent
  TensorView experts_of_token;  // [tokens] I32, each in [0, top_k]; absent: top_k for all
  // [tokens, top_k] I32: take this choice (up to the first -1), compute its gates; absent, or a row
  // that starts with kChooseFreely: choose.
  TensorView replayed_index;
  TensorView logits;     // [tokens, experts] F32 (F64), written; absent: not wanted
  TensorView affinity;   // [tokens, experts] F32 (F64), written
  TensorView index;      // [tokens, top_k] I32, written
  TensorView gate;       // [tokens, top_k] F32 (F64), written
  TensorView bad_token;  // [1] I32, written: lowest token with a non-finite logit, or -1
};
void router_forward(const Context& context, const RouterForward& args);

// From the gates' gradients to the logits'. The choice itself is constant.
struct RouterBackward {
  RouterRule rule;
  TensorView affinity;       // [tokens, experts]
  TensorView index;          // [tokens, top_k]
  TensorView row_of_slot;    // [tokens, top_k]
  TensorView d_gate_of_row;  // [tokens * top_k] F32 (F64)
  TensorView
      d_affinity;       // [tokens, experts] F32 (F64): what the balance losses add; absent: nothing
  TensorView d_logits;  // [tokens, experts] F32 (F64), written
};
void router_backward(const Context& context, const RouterBackward& args);

}  // namespace dsmoe::kernels

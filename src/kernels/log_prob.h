// Log-probabilities of given targets, and the most likely id.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

struct LogProbForward {
  TensorView logits;    // [rows, vocabulary] F32 (F64)
  TensorView target;    // [rows] I32; -1: not counted, log_prob 0
  TensorView log_prob;  // [rows] F32 (F64), written
  TensorView argmax;    // [rows] I32, written; ties by lower id; absent: not wanted
};
void log_prob_forward(const Context& context, const LogProbForward& args);

// The most likely id of each row.
struct ArgmaxForward {
  TensorView logits;  // [rows, vocabulary] F32 (F64)
  TensorView index;   // [rows] I32, written; ties by lower id; -1 when a logit is not finite
};
void argmax_forward(const Context& context, const ArgmaxForward& args);

// Cross-entropy: d_logits = (softmax - one-hot(target)) * scale, rounded; zero where the target is
// not counted.
struct CrossEntropyBackward {
  TensorView logits;    // [rows, vocabulary] F32 (F64)
  TensorView target;    // [rows] I32; -1: not counted
  double scale = 0;     // 1 / counted targets of the whole step
  TensorView log_prob;  // [rows] F32 (F64), written
  TensorView d_logits;  // [rows, vocabulary], operand type, written
};
void cross_entropy_backward(const Context& context, const CrossEntropyBackward& args);

}  // namespace dsmoe::kernels

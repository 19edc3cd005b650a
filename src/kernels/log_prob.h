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

}  // namespace dsmoe::kernels

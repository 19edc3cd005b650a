// Forward, loss and backward over one micro-batch of packed rows; gradients accumulate in their
// buffers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/gradients.h"
#include "model/language_model.h"

namespace dsmoe::model {

// Rows hold real tokens only (no padding); a row is cut into documents that do not see each other.
// Where ranks share the experts, all of them run a micro-batch at the same time; one that has
// nothing left runs a single row of no tokens.
struct MicroBatch {
  std::span<const int32_t> tokens;            // of all rows, one after the other
  std::span<const int32_t> targets;           // per token; -1: not counted
  std::span<const int32_t> row_lengths;       // sum = tokens
  std::span<const int32_t> document_lengths;  // sum = tokens; no document crosses a row's end
  kernels::GradientStart start = kernels::GradientStart::from_buffer;  // of weight matrices
  const Gradients* gradients = nullptr;  // absent: those that the pass was made with
  // The experts' gradients of the unit that each rank brings (moe/layer.h); empty: one for all.
  std::span<const Gradients* const> gradients_of_unit;
};

// What holds for the whole step, so that a micro-batch's share does not depend on the split.
struct StepScale {
  int64_t counted_targets = 0;
  int64_t num_balance_groups = 0;  // of the step
};

// Coefficients as configured; alpha 0 switches a loss off.
struct LossRule {
  double balance_alpha = 0;
  double device_alpha = 0;
  int64_t num_devices = 1;
  double z_alpha = 0;
  int64_t rows_per_balance_group = 1;
};

struct PassLosses {
  double nats = 0;                    // sum of -log p over counted targets
  std::vector<double> document_nats;  // the same of each document
  double balance = 0;
  double device_balance = 0;
  double z = 0;
  std::vector<std::vector<int64_t>> load;  // [MoE layer][expert]: tokens routed there
};

enum class Recompute : uint8_t { nothing, blocks };

class TrainingPass {
 public:
  struct Limits {
    int64_t max_tokens = 0;  // of a micro-batch
    int64_t max_rows = 0;
    int64_t max_documents = 0;
  };
  // The model must have been made with Passes::forward_and_backward. With Recompute::blocks only
  // the blocks' inputs are kept, and each block runs again before its backward pass: same bits,
  // less memory.
  TrainingPass(const Context& context, const Model& model, const Gradients& gradients,
               const LossRule& rule, const Limits& limits, Recompute recompute);
  ~TrainingPass();

  // Adds the micro-batch's share of the step's gradients. Allocates nothing, unless its documents
  // are shorter than any before and than expected; the losses hold until the next call.
  const PassLosses& run(const MicroBatch& batch, const StepScale& scale);

  // Forward and loss only: for validation.
  const PassLosses& evaluate(const MicroBatch& batch);

  const tensor::Arena& arena() const;
  const tensor::Arena& kv_arena() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe::model

// One training step: micro-batches, accumulated gradients, losses, loads, the optimiser's update.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/training_pass.h"
#include "train/optimizer.h"

namespace dsmoe::train {

// The rows of a step one after the other, without padding.
struct StepRows {
  std::vector<int32_t> tokens, targets;    // target -1: not counted
  std::vector<int32_t> row_lengths;        // tokens per row
  std::vector<int32_t> documents_per_row;  // documents per row
  std::vector<int32_t> document_lengths;   // tokens per document
  std::vector<int32_t> document_sources;   // per document; empty: losses of sources are not wanted

  int64_t num_rows() const { return static_cast<int64_t>(row_lengths.size()); }
  int64_t num_counted() const;
  void clear();
};

struct SourceLoss {
  double nats = 0;
  int64_t counted = 0;
};

inline constexpr std::size_t kUsualSources = 64;

struct StepResult {
  double language = 0;              // nats per counted target
  std::vector<SourceLoss> sources;  // by source; those past the last one in the rows may be missing
  double balance = 0, device_balance = 0, z = 0;
  double gradient_norm = 0;  // before clipping
  int64_t tokens = 0, counted = 0;
  std::vector<std::vector<int64_t>> load;  // [MoE layer][expert]
};

struct TrainerOptions {
  OptimizerRule optimizer;
  model::LossRule losses;  // its rows_per_balance_group divides rows_per_micro_batch
  int64_t rows_per_micro_batch = 1;
  int64_t max_row_tokens = 0;
  model::Recompute recompute = model::Recompute::nothing;
};

class Trainer {
 public:
  // `model`: made for forward and backward, from `initial` rounded as model::stored_type() says.
  // Only tensors that `trains` accepts change.
  Trainer(const Context& context, const model::Model& model,
          FunctionRef<bool(const std::string& name)> trains, ParameterSource& initial,
          const TrainerOptions& options);

  // The number of rows may change from step to step; with rows_per_balance_group > 1 it must be a
  // multiple of it. Allocates nothing after the first step, for up to kUsualSources sources; the
  // result holds until the next call, like the next one's.
  const StepResult& step(const StepRows& rows, double lr);

  // Gradients of a step without the update; they stay in the buffers. For tests.
  const StepResult& accumulate(const StepRows& rows);

  struct Evaluation {
    double nats = 0;
    int64_t counted = 0;
    std::vector<SourceLoss> sources;
  };
  const Evaluation& evaluate(const StepRows& rows);

  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const model::GradientBuffers& gradients() const { return gradients_; }
  std::vector<const tensor::Arena*> arenas() const;

 private:
  // f(micro-batch, index of its first document).
  template <class F>
  void for_each_micro_batch(const StepRows& rows, F&& f);

  TrainerOptions options_;
  tensor::Arena gradient_arena_;
  model::GradientBuffers gradients_;
  Optimizer optimizer_;
  model::TrainingPass pass_;
  StepResult result_;
  Evaluation evaluation_;
  bool gradients_are_zero_ = true;  // or count as zero (kernels::GradientStart): made so; the
                                    // optimiser leaves them so
};

}  // namespace dsmoe::train

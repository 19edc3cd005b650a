// One training step: micro-batches, accumulated gradients, losses, loads, the optimiser's update.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/self.h"
#include "model/training_pass.h"
#include "train/optimizer.h"
#include "train/step_rows.h"

namespace dsmoe::train {

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
  // Where ranks share the run: all of them, each with a model of its share of the experts, and a
  // context whose group holds those that share these.
  Optimizer::Sharing sharing;
};

class Trainer {
 public:
  // `model`: made for forward and backward, from `initial` rounded as model::stored_type() says.
  // Only tensors that `trains` accepts change.
  Trainer(const Context& context, const model::Model& model,
          FunctionRef<bool(const std::string& name)> trains, ParameterSource& initial,
          const TrainerOptions& options);

  // The number of rows may change from step to step; with rows_per_balance_group > 1 it must be a
  // multiple of it. All ranks are given all rows; results are those of the whole step. Alone it
  // allocates nothing after the first step, for up to kUsualSources sources; the result holds until
  // the next call, like the next one's.
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
  const model::GradientBuffers& gradients() const { return gradients_.first(); }
  std::vector<const tensor::Arena*> arenas() const;

 private:
  void take_rows(const StepRows& rows, int64_t rows_per_unit);
  // f(micro-batch, index of its first block of units), for those that this rank has to run.
  template <class F>
  void for_each_micro_batch(const StepRows& rows, std::vector<SourceLoss>& sources, F&& f);
  void start_gradients();
  void gather_document_nats(const StepRows& rows, std::vector<SourceLoss>& sources);
  void gather_statistics();
  void add_documents(const StepRows& rows, std::span<const double> nats,
                     std::vector<SourceLoss>& sources);
  bool is_alone() const { return group_.size() == 1; }

  TrainerOptions options_;
  comm::Self self_;
  comm::Group& group_;
  tensor::Arena gradient_arena_;
  GradientSets gradients_;
  Optimizer optimizer_;
  model::TrainingPass pass_;
  OwnRows rows_;
  std::vector<double> document_nats_;               // of this rank's documents, among several ranks
  double nats_ = 0;                                 // of the documents added so far
  std::size_t next_document_ = 0, next_token_ = 0;  // of the next one in the rows
  StepResult result_;
  Evaluation evaluation_;
  bool gradients_are_zero_ = true;  // or count as zero (kernels::GradientStart): made so; the
                                    // optimiser leaves them so
};

}  // namespace dsmoe::train

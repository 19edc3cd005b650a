// The training goldens, and a model set up to run their steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/training_pass.h"
#include "support/golden.h"

namespace dsmoe::testing {

// Names of the folders that hold a training golden, sorted.
std::vector<std::string> training_golden_names();

// Steps of packed rows, with what the oracle computed for them (oracle/README.md).
class TrainingGolden {
 public:
  explicit TrainingGolden(const std::string& name);

  std::vector<double> values(const std::string& tensor) const;
  double value(const std::string& tensor, int64_t step) const { return values(tensor)[step]; }
  double metadata(const std::string& key) const { return std::stod(file_.metadata().at(key)); }
  const std::filesystem::path& folder() const { return folder_; }
  int64_t num_rows() const { return file_.at("tokens").shape[1]; }

  // Rows [begin, end) of a step without their padding.
  struct Rows {
    std::vector<int32_t> tokens, targets, row_lengths, document_lengths;
    model::MicroBatch batch() const { return {tokens, targets, row_lengths, document_lengths}; }
    int64_t num_counted() const;
  };
  Rows rows(int64_t step, int64_t begin, int64_t end) const;

 private:
  std::filesystem::path folder_;
  store::SafetensorsFile file_;
};

struct StepLosses {
  double language = 0;
  double balance = 0;
  double z = 0;
};

// Model, gradient buffers and training pass for a golden.
class TrainingSetup {
 public:
  TrainingSetup(const kernels::Context& context, const TrainingGolden& golden,
                tensor::DType operand, model::Recompute recompute);

  // All micro-batches of one step; gradients accumulate.
  StepLosses run_step(const TrainingGolden& golden, int64_t step, int64_t rows_per_micro_batch);

  const model::GradientBuffers& gradients() const { return gradients_; }
  const model::Model& model() const { return *model_; }

 private:
  std::unique_ptr<model::Model> model_;
  tensor::Arena arena_{"gradients"};
  model::GradientBuffers gradients_;
  int64_t rows_per_balance_group_;
  std::unique_ptr<model::TrainingPass> pass_;
};

// Both parts of a tied embedding's gradient added.
std::vector<double> total_gradient(const model::NamedGradient& named);

}  // namespace dsmoe::testing

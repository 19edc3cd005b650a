// Pairs of context and continuation, measured while a model trains.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "model/language_model.h"
#include "train/run_data.h"

namespace dsmoe::app {

class PairFigures {
 public:
  // Reads the file and makes tokens of it. Throws Error(input).
  PairFigures(const std::string& file, const train::RunTokenizer& tokenizer,
              const model::ModelConfig& config, int64_t context);
  ~PairFigures();

  // Mean log-likelihood of the pairs, and the share of those that greedy decoding would give.
  static std::vector<std::string> names();
  std::vector<double> measure(const kernels::Context& context, const model::Model& model) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsmoe::app

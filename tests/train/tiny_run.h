// A tiny corpus, model and run for tests of training.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "data/token_corpus.h"
#include "kernels/table.h"
#include "model/config.h"
#include "model/parameter_source.h"
#include "train/run.h"

namespace dsmoe::testing {

// Every kind of tensor: a dense and a MoE layer, grouped KV heads, shared experts.
model::ModelConfig tiny_config(tensor::DType type);
// Sigmoid scores, groups, selection bias, normalised gates, tied embedding, attention bias.
model::ModelConfig tiny_v3_config(tensor::DType type);

// Documents of odd lengths 3..31, longer than a row some of them, some counted in part only.
data::MemoryCorpus tiny_corpus(int64_t vocab_size);

// Random weights lively enough for routing to differ between tokens.
class RandomWeights : public model::ParameterSource {
 public:
  // `selection_bias`: of every layer's experts, instead of random ones.
  explicit RandomWeights(std::vector<float> selection_bias = {})
      : selection_bias_(std::move(selection_bias)) {}
  model::StoredTensor tensor(const model::Parameter& parameter) override;

 private:
  std::vector<float> selection_bias_, values_;
};

struct TinyRun {
  model::ModelConfig config = tiny_config(tensor::DType::F32);
  int threads = 1;
  int64_t batch = 8;
  int64_t micro_batch = 4;
  int64_t balance_group = 0;
  model::Recompute recompute = model::Recompute::nothing;
  std::vector<std::string> patterns = {};
  int64_t steps = 20;
  int64_t stop_after = 0;  // 0: never
  int64_t save_every = 0;
  bool resume = false;
  bool valid_first = false;
  uint64_t seed = 1;
  std::string data = "tiny corpus", former_data = "";
  double lr = 3e-3;
  std::vector<double> weights = {};                     // of the corpus's two sources
  std::function<void(train::RunOptions&)> change = {};  // of what is not named above
  train::RunHooks hooks = {};
  std::vector<float> selection_bias = {};  // where the first weights have other ones
  kernels::Context device = {};            // table and stream; without a table: the CPU's
  int ranks = 1;                           // threads of this process
  int64_t expert_ranks = 1, shards = 1, expert_shards = 1;
  // What each rank takes for its group; absent: the group itself.
  std::function<std::unique_ptr<comm::Group>(comm::Group&)> wrap = {};
};

// Trains into `out`; what the run returned.
train::RunOutcome run_tiny(const TinyRun& run, const std::filesystem::path& out);

// name -> bytes of every file of a folder.
std::map<std::string, std::string> files_of(const std::filesystem::path& folder);

}  // namespace dsmoe::testing

// Tiny runs in memory.
#include "tiny_run.h"

#include <fstream>

#include "base/rng.h"
#include "comm/threads.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSeq = 22;

}  // namespace

model::ModelConfig tiny_config(tensor::DType type) {
  model::ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.intermediate_size = 10;
  config.max_position_embeddings = 64;
  config.torch_dtype = type;
  config.n_routed_experts = 6;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 5;
  config.first_k_dense_replace = 1;
  config.aux_loss_alpha = 0.01;
  config.bos_token_id = 0;
  config.eos_token_ids = {1};
  config.check("tiny");
  return config;
}

model::ModelConfig tiny_v3_config(tensor::DType type) {
  model::ModelConfig config = tiny_config(type);
  config.first_k_dense_replace = 0;
  config.scoring_func = model::ScoringFunc::sigmoid;
  config.topk_method = model::TopkMethod::noaux_tc;
  config.norm_topk_prob = true;
  config.n_group = 3;
  config.topk_group = 2;
  config.routed_scaling_factor = 1.5;
  config.tie_word_embeddings = true;
  config.attention_bias = true;
  config.check("tiny v3");
  return config;
}

data::MemoryCorpus tiny_corpus(int64_t vocab_size) {
  data::MemoryCorpus corpus(vocab_size, {"a", "b"});
  const Rng rng{.seed = 5, .purpose = RngPurpose::test, .stream = 1};
  uint64_t at = 0;
  for (int32_t d = 0; d < 60; ++d) {
    data::TokenDocument document{.source = d % 2};
    const auto length = static_cast<int32_t>(3 + rng.below(at++, 29));
    document.tokens.push_back(0);
    for (int32_t i = 2; i < length; ++i) {
      // Half of the tokens follow from the one before, so that there is something to learn.
      const int32_t previous = document.tokens.back();
      const bool free = rng.below(at++, 2) == 0;
      document.tokens.push_back(
          free ? static_cast<int32_t>(2 + rng.below(at++, static_cast<uint64_t>(vocab_size) - 2))
               : 2 + (previous * 7 + 3) % static_cast<int32_t>(vocab_size - 2));
    }
    document.tokens.push_back(1);
    if (d % 7 == 0) {
      document.counted.assign(document.tokens.size(), 1);
      for (std::size_t i = 0; i < document.counted.size() / 2; ++i) document.counted[i] = 0;
    }
    corpus.add(std::move(document));
  }
  return corpus;
}

model::StoredTensor RandomWeights::tensor(const model::Parameter& parameter) {
  uint64_t seed = 7;
  for (const char c : parameter.name) seed = seed * 131 + static_cast<unsigned char>(c);
  const Rng rng{.seed = seed, .purpose = RngPurpose::test};
  values_.resize(static_cast<std::size_t>(parameter.shape.num_elements()));
  rng.fill_normal(0, values_);
  const bool is_norm = parameter.initial == model::Initial::ones;
  for (float& value : values_) value = is_norm ? 1 + 0.1f * value : 0.2f * value;
  if (parameter.role == model::Role::selection_bias && !selection_bias_.empty())
    values_ = selection_bias_;
  return {
      .elements = {.data = values_.data(), .dtype = tensor::DType::F32, .shape = parameter.shape}};
}

namespace {

// The tiny corpus as it is, or by source with weights.
class TinyParts {
 public:
  explicit TinyParts(const TinyRun& run) : weights_(run.weights) {
    const data::MemoryCorpus all = tiny_corpus(run.config.vocab_size);
    corpus_ = std::make_unique<data::MemoryCorpus>(run.config.vocab_size, all.sources());
    const auto num_sources = static_cast<int32_t>(all.sources().size());
    for (int32_t source = 0; source < (weights_.empty() ? 1 : num_sources); ++source) {
      for (int64_t d = 0; d < all.num_documents(); ++d) {
        if (!weights_.empty() && all.source(d) != source) continue;
        data::TokenDocument document{.tokens = data::all_tokens(all, d), .source = all.source(d)};
        document.counted.resize(document.tokens.size());
        all.copy_counted(d, 0, document.counted);
        corpus_->add(std::move(document));
      }
    }
    constexpr data::SplitOptions kSplit{.fraction = 0.1, .seed = 3};
    if (weights_.empty()) {
      splits_.push_back(std::make_unique<data::DocumentSplit>(*corpus_, kSplit));
      return;
    }
    ranges_ = data::ranges_of_sources(*corpus_);
    for (const data::CorpusRange& range : ranges_) {
      splits_.push_back(std::make_unique<data::DocumentSplit>(range, kSplit));
    }
  }

  std::vector<data::MixturePart> of(data::SplitPart part) const {
    std::vector<data::MixturePart> parts;
    for (std::size_t i = 0; i < splits_.size(); ++i) {
      parts.push_back(
          {.split = splits_[i].get(), .part = part, .weight = weights_.empty() ? 1 : weights_[i]});
    }
    return parts;
  }

 private:
  std::vector<double> weights_;
  std::unique_ptr<data::MemoryCorpus> corpus_;
  std::vector<data::CorpusRange> ranges_;
  std::vector<std::unique_ptr<data::DocumentSplit>> splits_;
};

}  // namespace

namespace {

// One rank of the run, or all of it.
train::RunOutcome run_rank(const TinyRun& run, const fs::path& out, const store::RunLock* lock,
                           comm::Group* ranks) {
  ThreadPool pool(run.threads);
  const kernels::Context context{
      .table = run.device.table != nullptr ? run.device.table : &kernels::select_cpu_table(),
      .pool = &pool,
      .stream = run.device.stream};
  const TinyParts parts(run);
  RandomWeights initial(run.selection_bias);
  int64_t steps_now = 0;
  train::RunOptions options{
      .out = out,
      .config = run.config,
      .batch = run.batch,
      .seq = kSeq,
      .micro_batch = run.micro_batch,
      .schedule = {.max_lr = run.lr, .warmup_steps = 3, .total_steps = run.steps},
      .z_alpha = 1e-3,
      .balance_group = run.balance_group,
      .seed = run.seed,
      .patterns = run.patterns,
      .recompute = run.recompute,
      .expert_ranks = run.expert_ranks,
      .shards = run.shards,
      .expert_shards = run.expert_shards,
      .save_every = run.save_every,
      .valid_rows = 3,
      .valid_first = run.valid_first,
      .resume = run.resume,
      .data_identity = run.data,
      .former_data_identity = run.former_data,
      .init_identity = "tiny weights",
      .files = {{"tokenizer.json", "{}"}}};
  if (run.change) run.change(options);
  train::RunHooks hooks = run.hooks;
  hooks.should_stop = [&] { return steps_now == run.stop_after; };
  hooks.on_step = [&](const train::StepMetrics& metrics, const train::StepResult& result) {
    steps_now = metrics.step;
    if (run.hooks.on_step) run.hooks.on_step(metrics, result);
  };
  return train::run_training(context, options,
                             {.lock = lock,
                              .ranks = ranks,
                              .initial = initial,
                              .training = parts.of(data::SplitPart::training),
                              .validation = parts.of(data::SplitPart::validation)},
                             hooks);
}

}  // namespace

train::RunOutcome run_tiny(const TinyRun& run, const fs::path& out) {
  const store::RunLock lock(out);
  if (run.ranks == 1) return run_rank(run, out, &lock, nullptr);
  train::RunOutcome outcome;
  comm::run_ranks({.size = run.ranks}, [&](comm::Group& group) {
    std::unique_ptr<comm::Group> seen = run.wrap ? run.wrap(group) : nullptr;
    const bool is_first = group.rank() == 0;
    train::RunOutcome own =
        run_rank(run, out, is_first ? &lock : nullptr, seen ? seen.get() : &group);
    if (is_first) outcome = std::move(own);
  });
  return outcome;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

}  // namespace dsmoe::testing

// What is taken away is really taken away, and nothing else.
#include "infer/measure/probe.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/memory.h"
#include "kernels/table.h"
#include "store/hf_folder.h"

namespace dsmoe::infer {
namespace {

const auto kFolder = std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released";

// The folder's tensors, with the shared experts' output matrices zero.
class WithoutSharedOutput : public model::ParameterSource {
 public:
  model::StoredTensor tensor(const model::Parameter& parameter) override {
    const store::TensorEntry& entry = folder_.at(parameter.name);
    const auto bytes = folder_.bytes(parameter.name);
    values_.assign(bytes.begin(), bytes.end());
    if (parameter.role == model::Role::shared_down) {
      std::fill(values_.begin(), values_.end(), std::byte{0});
      ++num_cleared;
    }
    return {.elements = {.data = values_.data(), .dtype = entry.dtype, .shape = entry.shape}};
  }
  int num_cleared = 0;

 private:
  store::HfFolder folder_ = store::HfFolder::open(kFolder);
  std::vector<std::byte> values_;
};

class Probe : public ::testing::Test {
 protected:
  std::vector<float> log_probs(const model::Model& model, const ScorerOptions& options) {
    std::vector<float> all;
    const std::vector<ScoredDocument> documents{{.tokens = tokens_}};
    score_documents(context_, model, documents, options, [&](int64_t, const TokenScores& scores) {
      all.assign(scores.log_prob.begin(), scores.log_prob.end());
    });
    return all;
  }

  // Experts of the first MoE layer, [tokens, top_k]: its input does not depend on the choice.
  std::vector<int32_t> first_choice(int64_t top_k, const model::Ablation& ablation) {
    const auto n = static_cast<int64_t>(tokens_.size());
    attention::KvCache cache(context_, model_->kv_layers(), attention::KvCache::pages_for(n));
    model::ForwardPass pass(context_, *model_, cache,
                            {.max_tokens = n, .max_sequences = 1, .max_top_k = top_k});
    attention::KvSequence sequence;
    const model::Segment segment{.sequence = &sequence, .num_tokens = n};
    std::vector<int32_t> first;
    const auto observe = [&](int64_t, const moe::LayerTape& tape, const tensor::TensorView&) {
      if (!tape.index || !first.empty()) return;
      first.resize(static_cast<std::size_t>(tape.index.num_elements()));
      kernels::download(context_, tape.index, first.data());
    };
    model::BlockObserver observer(observe);
    pass.run({.tokens = tokens_,
              .segments = {&segment, 1},
              .top_k = top_k,
              .ablation = ablation,
              .observer = &observer});
    return first;
  }

  ThreadPool pool_{2};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  std::unique_ptr<model::Model> model_ = load_model(context_, kFolder, {});
  std::vector<int32_t> tokens_{5, 17, 3, 8, 8, 30, 2, 11, 42, 3, 3, 9, 1, 25};
};

TEST_F(Probe, VariantsOfThePapersModel) {
  model::ModelConfig config;
  config.num_hidden_layers = 1;
  config.n_routed_experts = 63;
  config.num_experts_per_tok = 7;
  config.n_shared_experts = 1;
  const auto variants = probe_variants(config);
  ASSERT_EQ(variants.size(), 1u + 4 + 6 + 1);
  EXPECT_EQ(variants[1].ablation.skip_best, 4);
  EXPECT_EQ(variants[4].ablation.skip_best, 16);
  EXPECT_EQ(variants[5].top_k, 6);
  EXPECT_EQ(variants[10].top_k, 1);
  EXPECT_EQ(variants[11].kind, ProbeKind::shared_replaced);
  EXPECT_EQ(variants[11].top_k, 8);

  config.n_routed_experts = 4;  // masks of one, not two: 2 + 2 are all there are
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 0;
  const auto few = probe_variants(config);
  ASSERT_EQ(few.size(), 1u + 2 + 1);
  EXPECT_EQ(few[1].ablation.skip_best, 1);
  EXPECT_EQ(few[2].ablation.skip_best, 2);

  config.n_routed_experts = 0;
  EXPECT_THROW(probe_variants(config), Error);
}

TEST_F(Probe, MaskedExpertsAreTheOnesTheTokenWanted) {
  const int64_t top_k = model_->config.num_experts_per_tok;
  const auto wide = first_choice(top_k + 2, {});
  const auto masked = first_choice(top_k, {.skip_best = 2});
  ASSERT_EQ(masked.size(), tokens_.size() * static_cast<std::size_t>(top_k));
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    for (int64_t slot = 0; slot < top_k; ++slot) {
      EXPECT_EQ(masked[t * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(slot)],
                wide[t * static_cast<std::size_t>(top_k + 2) + static_cast<std::size_t>(slot + 2)]);
    }
  }
}

TEST_F(Probe, SharedLeftOutEqualsSharedThatAddNothing) {
  WithoutSharedOutput source;
  const auto cleared =
      model::make_model(context_, model_->config, source, {.operand = model_->operand});
  ASSERT_GT(source.num_cleared, 0);
  const ScorerOptions left_out{.ablation = {.shared = model::SharedExperts::left_out}};
  const std::vector<float> expected = log_probs(*cleared, {}), found = log_probs(*model_, left_out);
  ASSERT_EQ(expected.size(), found.size());
  EXPECT_EQ(std::memcmp(expected.data(), found.data(), found.size() * sizeof(float)), 0);
  EXPECT_NE(log_probs(*model_, {}), found);
}

TEST_F(Probe, EveryVariantIsScoredAndTheFirstIsTheModelItself) {
  const auto variants = probe_variants(model_->config);
  const std::vector<ScoredDocument> documents{{.tokens = tokens_}};
  const auto results = run_probe(context_, *model_, variants, documents, {});
  ASSERT_EQ(results.size(), variants.size());
  double nats = 0;
  for (const float log_prob : log_probs(*model_, {})) nats -= log_prob;
  EXPECT_DOUBLE_EQ(results[0].loss, nats / static_cast<double>(tokens_.size() - 1));
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_NE(results[i].loss, results[0].loss) << name_of(variants[i].kind);
  }
  const std::atomic<bool> cancelled{true};
  EXPECT_TRUE(run_probe(context_, *model_, variants, documents, {.cancelled = &cancelled}).empty());
}

}  // namespace
}  // namespace dsmoe::infer

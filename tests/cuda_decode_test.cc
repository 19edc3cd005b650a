// Decoding a few sequences on the GPU, by kernels for few tokens, against whole documents through
// the ops one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/memory.h"
#include "model/initialise.h"
#include "model/language_model.h"

namespace dsmoe::testing {
namespace {

using model::ModelConfig;
using Tokens = std::vector<int32_t>;

struct DecodeCase {
  const char* name;
  ModelConfig config;
};

class CudaDecode : public ::testing::TestWithParam<DecodeCase> {
 protected:
  static constexpr int64_t kSteps = 9;
  static constexpr std::size_t kDocuments = 33;

  void SetUp() override {
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    context_ = {.table = &kernels::cuda_table(),
                .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
    ModelConfig config = GetParam().config;
    config.vocab_size = 304;
    config.initializer_range = 0.05;
    config.torch_dtype = tensor::DType::BF16;
    config.check("test");
    model::InitialWeights weights(config, 5);
    model_ = model::make_model(context_, config, weights,
                               {.operand = tensor::DType::BF16, .context = 1200});
    const Rng rng{11, RngPurpose::test};
    uint64_t draw = 0;
    // One block of keys, several, more than one span, and more than two; short ones for the rest.
    std::vector<int64_t> lengths{12, 70, 600, 1100, 64 + kSteps};
    while (lengths.size() < kDocuments)
      lengths.push_back(kSteps + 1 + static_cast<int64_t>(lengths.size() * 7 % 60));
    for (const int64_t length : lengths) {
      Tokens tokens(static_cast<std::size_t>(length));
      for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(draw++, 304));
      documents_.push_back(tokens);
    }
  }
  void TearDown() override {
    model_.reset();
    if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
  }

  struct Result {
    std::vector<float> logits;   // of the last kSteps tokens of each document
    std::vector<int32_t> index;  // what the last pass chose, all layers
    std::vector<float> gate;
  };

  // The last kSteps tokens one at a time, `batch` documents at once; 0: with all tokens before
  // them.
  Result run(int64_t batch) {
    const int64_t at_once = std::max<int64_t>(batch, 1);
    attention::KvCache cache(context_, model_->kv_layers(),
                             at_once * attention::KvCache::pages_for(1200));
    model::ForwardPass pass(
        context_, *model_, cache,
        {.max_tokens = 1200, .max_sequences = at_once, .keep_routing = model::KeepRouting::yes});
    Result result;
    result.logits.resize(documents_.size() * kSteps * 304);
    for (std::size_t first = 0; first < documents_.size();
         first += static_cast<std::size_t>(at_once)) {
      const std::size_t end =
          std::min(documents_.size(), first + static_cast<std::size_t>(at_once));
      std::vector<attention::KvSequence> sequences(end - first);
      for (std::size_t d = first; d < end; ++d) {
        const Tokens& all = documents_[d];
        const auto length = static_cast<int64_t>(all.size()) - (batch > 0 ? kSteps : 0);
        const std::vector<model::Segment> segments{
            {.sequence = &sequences[d - first], .num_tokens = length}};
        const tensor::TensorView hidden = pass.run(
            {.tokens = {all.data(), static_cast<std::size_t>(length)}, .segments = segments});
        if (batch == 0) take(pass, hidden.rows(length - kSteps, length), d, 0, result);
      }
      for (int64_t step = 0; batch > 0 && step < kSteps; ++step) {
        Tokens tokens;
        std::vector<model::Segment> segments;
        for (std::size_t d = first; d < end; ++d) {
          tokens.push_back(documents_[d][documents_[d].size() - kSteps + step]);
          segments.push_back({.sequence = &sequences[d - first], .num_tokens = 1});
        }
        const tensor::TensorView hidden = pass.run({.tokens = tokens, .segments = segments});
        for (std::size_t d = first; d < end; ++d) {
          const auto row = static_cast<int64_t>(d - first);
          take(pass, hidden.rows(row, row + 1), d, step, result);
        }
      }
      for (attention::KvSequence& sequence : sequences) cache.truncate(sequence, 0);
    }
    take_routing(pass, result);
    return result;
  }

  void take(model::ForwardPass& pass, const tensor::TensorView& hidden, std::size_t document,
            int64_t step, Result& result) {
    tensor::Arena arena("logits", context_.table->allocator);
    const tensor::TensorView out =
        arena.tensor("logits", tensor::DType::F32, {hidden.dim(0), int64_t{304}});
    pass.logits(hidden, out);
    pass.read(out, result.logits.data() + (static_cast<int64_t>(document) * kSteps + step) * 304);
  }

  // Of the last token of the last document.
  void take_routing(model::ForwardPass& pass, Result& result) {
    const tensor::TensorView& shape = pass.routing().index;
    if (!shape) return;  // a dense model
    std::vector<int32_t> index(static_cast<std::size_t>(shape.num_elements()));
    std::vector<float> gate(index.size());
    pass.read(pass.routing().index, index.data());
    kernels::download(context_, pass.routing().gate, gate.data());
    for (int64_t layer = 0; layer < shape.dim(0); ++layer) {
      const int64_t end = (layer + 1) * shape.dim(1) * shape.dim(2);
      const int64_t begin = end - shape.dim(2);
      result.index.insert(result.index.end(), index.begin() + begin, index.begin() + end);
      result.gate.insert(result.gate.end(), gate.begin() + begin, gate.begin() + end);
    }
  }

  kernels::Context context_;
  std::unique_ptr<model::Model> model_;
  std::vector<Tokens> documents_;
};

TEST_P(CudaDecode, GivesTheBitsOfWholeDocuments) {
  const Result whole = run(0);
  // Every number of sequences from which on another kernel is taken, and the one before it.
  for (const int64_t batch : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 1}) {
    const Result decoded = run(batch);
    EXPECT_EQ(std::memcmp(decoded.logits.data(), whole.logits.data(),
                          whole.logits.size() * sizeof(float)),
              0)
        << "batch " << batch;
    EXPECT_EQ(decoded.index, whole.index) << "batch " << batch;
    EXPECT_EQ(decoded.gate, whole.gate) << "batch " << batch;
    // The comparison can tell steps apart.
    EXPECT_NE(std::memcmp(decoded.logits.data(), whole.logits.data() + 304, 304 * sizeof(float)),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaDecode,
                         ::testing::Values(DecodeCase{"small",
                                                      {.hidden_size = 256,
                                                       .num_hidden_layers = 3,
                                                       .num_attention_heads = 4,
                                                       .num_key_value_heads = 4,
                                                       .head_dim = 64,
                                                       .intermediate_size = 520,
                                                       .n_routed_experts = 16,
                                                       .n_shared_experts = 2,
                                                       .num_experts_per_tok = 3,
                                                       .moe_intermediate_size = 40,
                                                       .first_k_dense_replace = 1}},
                                           DecodeCase{"grouped_heads_and_biases",
                                                      {.hidden_size = 528,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 6,
                                                       .num_key_value_heads = 2,
                                                       .head_dim = 128,
                                                       .intermediate_size = 64,
                                                       .attention_bias = true,
                                                       .n_routed_experts = 70,
                                                       .n_shared_experts = 0,
                                                       .num_experts_per_tok = 5,
                                                       .moe_intermediate_size = 264}},
                                           DecodeCase{"dense",
                                                      {.hidden_size = 96,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 2,
                                                       .num_key_value_heads = 1,
                                                       .head_dim = 48,
                                                       .intermediate_size = 1096}},
                                           DecodeCase{"released",
                                                      {.hidden_size = 2048,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 16,
                                                       .num_key_value_heads = 16,
                                                       .head_dim = 128,
                                                       .intermediate_size = 2816,
                                                       .n_routed_experts = 8,
                                                       .n_shared_experts = 2,
                                                       .num_experts_per_tok = 6,
                                                       .moe_intermediate_size = 1408,
                                                       .first_k_dense_replace = 1}}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

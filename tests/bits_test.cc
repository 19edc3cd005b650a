// The same bits, always: a token's logits do not depend on the batch, the threads, or how its document was cut into
// forward passes (levels L1 to L4 of docs/numerics.md). Each check also runs on a table that breaks one rule, and must
// notice.
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"
#include "support/golden.h"

namespace dsmoe::testing {
namespace {

using kernels::Context;
using kernels::KernelTable;
using tensor::DType;

constexpr int kNumPrompts = 50;
constexpr int64_t kMaxLength = 90;  // more than one block of 64 keys

using Tokens = std::vector<int32_t>;

std::vector<Tokens> random_prompts(int64_t vocabulary) {
  std::vector<Tokens> prompts;
  const Rng rng{7, RngPurpose::test};
  uint64_t draw = 0;
  for (int p = 0; p < kNumPrompts; ++p) {
    Tokens tokens(1 + rng.below(draw++, kMaxLength));
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(draw++, static_cast<uint64_t>(vocabulary)));
    prompts.push_back(tokens);
  }
  return prompts;
}

struct Manner {
  int64_t batch = 1;       // documents per forward pass
  int64_t chunk = 0;       // new tokens of a document per forward pass; 0: all
  int num_threads = 1;
};

// Logits of every token of every prompt, [sum of lengths, vocabulary].
std::vector<float> all_logits(const KernelTable& table, const model::Model& model, const std::vector<Tokens>& prompts,
                              const Manner& manner) {
  ThreadPool pool(manner.num_threads);
  const Context context{.table = &table, .pool = &pool};
  model::KvCache cache(context, model.config, model.operand, manner.batch * model::KvCache::pages_for(kMaxLength));
  model::ForwardPass pass(context, model, cache,
                          {.max_tokens = manner.batch * kMaxLength, .max_sequences = manner.batch});
  const int64_t vocabulary = model.config.vocab_size;
  tensor::Arena arena("test");
  const tensor::TensorView buffer =
      arena.tensor("logits", DType::F32, {manner.batch * kMaxLength, vocabulary});

  std::vector<std::vector<float>> logits(prompts.size());
  for (std::size_t first = 0; first < prompts.size(); first += manner.batch) {
    const std::size_t end = std::min(prompts.size(), first + manner.batch);
    std::vector<model::KvSequence> sequences(end - first);
    for (bool left = true; left;) {
      left = false;
      Tokens tokens;
      std::vector<model::Segment> segments;
      std::vector<std::size_t> owners;
      for (std::size_t p = first; p < end; ++p) {
        model::KvSequence& sequence = sequences[p - first];
        const auto remaining = static_cast<int64_t>(prompts[p].size()) - sequence.length;
        const int64_t count = manner.chunk > 0 ? std::min(manner.chunk, remaining) : remaining;
        if (count == 0) continue;
        left = true;
        const auto begin = prompts[p].begin() + sequence.length;
        tokens.insert(tokens.end(), begin, begin + count);
        segments.push_back({.sequence = &sequence, .num_tokens = count});
        owners.push_back(p);
      }
      if (!left) break;
      const tensor::TensorView hidden = pass.run({.tokens = tokens, .segments = segments});
      const tensor::TensorView out = buffer.rows(0, static_cast<int64_t>(tokens.size()));
      pass.logits(hidden, out);
      const float* row = out.as<float>();
      for (std::size_t s = 0; s < segments.size(); ++s) {
        const int64_t size = segments[s].num_tokens * vocabulary;
        logits[owners[s]].insert(logits[owners[s]].end(), row, row + size);
        row += size;
      }
    }
    for (model::KvSequence& sequence : sequences) cache.truncate(sequence, 0);
  }
  std::vector<float> all;
  for (const std::vector<float>& part : logits) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Tables that break one rule each.
const KernelTable& chosen() { return kernels::select_cpu_table(); }

// A product that sums from the other end when it has more than one row: what many libraries do by picking a kernel by size.
void matmul_by_batch_size(const Context& context, const kernels::MatmulForward& args) {
  if (args.x.dim(0) == 1) return kernels::ref::matmul_forward(context, args);
  kernels::ref::with_operand(args.x.dtype, [&]<class Operand>() {
    using S = kernels::ref::Scalar<Operand>;
    const int64_t size = args.weight.k;
    const auto* w = static_cast<const Operand*>(args.weight.matrix(0));
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      for (int64_t n = 0; n < args.weight.n; ++n) {
        S sum = 0;
        for (int64_t k = size - 1; k >= 0; --k) {
          sum += kernels::ref::widen(args.x.as<Operand>()[t * size + k]) *
                 kernels::ref::widen(w[kernels::panel_index(args.weight.dtype, size, n, k)]);
        }
        S& out = args.out.as<S>()[t * args.weight.n + n];
        if (args.bias) sum += args.bias.as<S>()[n];
        out = args.store == kernels::Store::accumulate ? out + sum : sum;
      }
    }
  });
}

// A product whose sum over k is divided over the threads.
void matmul_by_threads(const Context& context, const kernels::MatmulForward& args) {
  if (context.pool->num_threads() == 1) return kernels::ref::matmul_forward(context, args);
  matmul_by_batch_size(context, args);
}

KernelTable with_matmul(void (*matmul)(const Context&, const kernels::MatmulForward&)) {
  KernelTable table = chosen();
  table.matmul_forward = matmul;
  return table;
}

struct Case {
  std::string model;
  DType operand;
};

class Bits : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ThreadPool pool(1);
    const Context context{.table = &chosen(), .pool = &pool};
    model_ = infer::load_model(context, goldens_folder() / GetParam().model, {.operand = GetParam().operand});
    prompts_ = random_prompts(model_->config.vocab_size);
    alone_ = all_logits(chosen(), *model_, prompts_, {});
  }

  bool same_as_alone(const KernelTable& table, const Manner& manner) const {
    const std::vector<float> logits = all_logits(table, *model_, prompts_, manner);
    return logits.size() == alone_.size() &&
           std::memcmp(logits.data(), alone_.data(), alone_.size() * sizeof(float)) == 0;
  }

  std::unique_ptr<model::Model> model_;
  std::vector<Tokens> prompts_;
  std::vector<float> alone_;  // one document per pass, one pass per document, one thread
};

TEST_P(Bits, Batch) {
  EXPECT_TRUE(same_as_alone(chosen(), {.batch = 7}));
  EXPECT_FALSE(same_as_alone(with_matmul(matmul_by_batch_size), {.batch = 7}));
}

TEST_P(Bits, Threads) {
  EXPECT_TRUE(same_as_alone(chosen(), {.num_threads = 1}));
  EXPECT_TRUE(same_as_alone(chosen(), {.num_threads = 2}));
  EXPECT_TRUE(same_as_alone(chosen(), {.batch = 7, .num_threads = 3}));
  EXPECT_TRUE(same_as_alone(with_matmul(matmul_by_threads), {.num_threads = 1}));
  EXPECT_FALSE(same_as_alone(with_matmul(matmul_by_threads), {.num_threads = 2}));
}

TEST_P(Bits, Chunks) {
  for (const int64_t chunk : {1, 5, 16}) EXPECT_TRUE(same_as_alone(chosen(), {.chunk = chunk})) << chunk;
  EXPECT_TRUE(same_as_alone(chosen(), {.batch = 7, .chunk = 1, .num_threads = 2}));
  EXPECT_TRUE(same_as_alone(chosen(), {.batch = 7, .chunk = 5}));
  EXPECT_FALSE(same_as_alone(with_matmul(matmul_by_batch_size), {.chunk = 16}));
}

// L8: every tier this machine can run.
TEST_P(Bits, Tiers) {
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    if (candidate.table == nullptr || !candidate.declined.empty()) continue;
    EXPECT_TRUE(same_as_alone(*candidate.table, {.batch = 7})) << candidate.name;
  }
  EXPECT_FALSE(same_as_alone(with_matmul(matmul_by_batch_size), {.batch = 2}));
}

INSTANTIATE_TEST_SUITE_P(Models, Bits,
                         ::testing::Values(Case{"released_bf16", DType::BF16}, Case{"released_bf16", DType::F32},
                                           Case{"odd", DType::BF16}, Case{"odd", DType::F32}, Case{"v3", DType::BF16},
                                           Case{"v3", DType::F32}),
                         [](const auto& test) {
                           return test.param.model + "_" + std::string(tensor::name_of(test.param.operand));
                         });

}  // namespace
}  // namespace dsmoe::testing

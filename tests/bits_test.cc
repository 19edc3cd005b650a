// The same bits, always: a token's logits do not depend on the batch, the threads, or how its
// document was cut into forward passes (levels L1 to L4 of docs/numerics.md). Each check also runs
// on a table that breaks one rule, and must notice.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"
#include "support/golden.h"
#include "support/manners.h"

namespace dsmoe::testing {
namespace {

using kernels::Context;
using kernels::KernelTable;
using tensor::DType;

// Tables that break one rule each.
const KernelTable& chosen() { return kernels::select_cpu_table(); }

// A product that sums from the other end when it has more than one row: what many libraries do by
// picking a kernel by size.
void matmul_by_batch_size(const Context& context, const kernels::MatmulForward& args) {
  if (args.x.dim(0) == 1) return kernels::ref::matmul_forward(context, args);
  kernels::ref::with_operand(args.operand, [&]<class Operand>() {
    using S = kernels::ref::Scalar<Operand>;
    const kernels::WeightStack& weight = args.weight.stack;
    const int64_t size = weight.k;
    const auto* w = static_cast<const Operand*>(weight.matrix(0));
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      for (int64_t n = 0; n < weight.n; ++n) {
        S sum = 0;
        for (int64_t k = size - 1; k >= 0; --k) {
          sum += kernels::ref::widen(args.x.as<Operand>()[t * size + k]) *
                 kernels::ref::widen(w[kernels::panel_index(weight.dtype, size, n, k)]);
        }
        S& out = args.out.as<S>()[t * weight.n + n];
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
    model_ = infer::load_model(context, goldens_folder() / GetParam().model,
                               {.operand = GetParam().operand});
    prompts_ = random_prompts(model_->config.vocab_size);
    alone_ = logits_of(chosen(), {});
  }

  std::vector<float> logits_of(const KernelTable& table, const Manner& manner) const {
    ThreadPool pool(manner.num_threads);
    return all_logits({.table = &table, .pool = &pool}, *model_, prompts_, manner);
  }

  bool same_as_alone(const KernelTable& table, const Manner& manner) const {
    const std::vector<float> logits = logits_of(table, manner);
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
  for (const int64_t chunk : {1, 5, 16})
    EXPECT_TRUE(same_as_alone(chosen(), {.chunk = chunk})) << chunk;
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

std::vector<Case> cases() {
  std::vector<Case> list{{"released_bf16", DType::BF16}, {"released_bf16", DType::F32}};
  for (const char* model : {"odd", "v3", "qwen3_moe_1", "qwen2_moe_1", "glm4_moe_1",
                            "deepseek_v2_1", "deepseek_v3_2", "glm4_moe_lite_1"}) {
    for (const DType operand : {DType::BF16, DType::F32}) list.push_back({model, operand});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Models, Bits, ::testing::ValuesIn(cases()), [](const auto& test) {
  return test.param.model + "_" + std::string(tensor::name_of(test.param.operand));
});

}  // namespace
}  // namespace dsmoe::testing

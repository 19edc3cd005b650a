// After the first step of a training loop nothing is allocated any more: every malloc of this
// program is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "data/batches.h"
#include "tiny_run.h"
#include "train/sources.h"

namespace {

std::atomic<int64_t> num_allocations{0};
// Workers allocate with the first share they have, and the memory that any thread works in grows
// with its largest: that may be any step's, as the caller takes the shares of workers that come
// late (base/thread_pool.h).
std::atomic<int64_t> num_growths{0};
const std::thread::id main_thread = std::this_thread::get_id();

void count_allocation() {
  ++(std::this_thread::get_id() == main_thread ? num_allocations : num_growths);
}

}  // namespace

// The C library's own names for the real functions. operator new calls malloc.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  count_allocation();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  count_allocation();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  count_allocation();
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++num_growths;
  return __libc_memalign(alignment, size);
}
}

namespace dsmoe::testing {
namespace {

using tensor::DType;

constexpr int64_t kSeq = 22;
constexpr int64_t kBatch = 8;

struct Kind {
  std::string name;
  model::ModelConfig config;
  int threads = 1;
  model::Recompute recompute = model::Recompute::nothing;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// What the loop of a run does per step, without the lines it writes about it.
class Loop {
 public:
  explicit Loop(const Kind& kind, int64_t seq = kSeq)
      : pool_(kind.threads),
        context_{.table = &kernels::select_cpu_table(), .pool = &pool_},
        stored_(weights_, kind.config),
        model_(model::make_model(context_, kind.config, stored_,
                                 {.operand = kind.config.torch_dtype,
                                  .context = seq,
                                  .passes = moe::Passes::forward_and_backward})),
        trainer_(context_, *model_, [](const std::string&) { return true; }, weights_,
                 {.losses = {.balance_alpha = 0.01,
                             .device_alpha = 0.01,
                             .num_devices = 2,
                             .z_alpha = 1e-3},
                  .rows_per_micro_batch = 3,  // the last one is smaller
                  .max_row_tokens = seq,
                  .recompute = kind.recompute}),
        corpus_(tiny_corpus(kind.config.vocab_size)),
        split_(corpus_, {.fraction = 0.1}),
        batches_(split_, {.batch = kBatch, .seq = seq, .seed = 1}) {}

  const train::StepResult& step() {
    batches_.fill(static_cast<uint64_t>(steps_++), batch_);
    train::pack_rows(batch_, rows_);
    return step(rows_);
  }
  const train::StepResult& step(const train::StepRows& rows) { return trainer_.step(rows, 1e-3); }
  double validate() { return validate(rows_); }
  double validate(const train::StepRows& rows) { return trainer_.evaluate(rows).nats; }
  const train::StepRows& rows() const { return rows_; }
  uint64_t epoch() const { return batch_.epoch; }

 private:
  ThreadPool pool_;
  kernels::Context context_;
  RandomWeights weights_;
  train::RoundedParameters stored_;
  std::unique_ptr<model::Model> model_;
  train::Trainer trainer_;
  data::MemoryCorpus corpus_;
  data::DocumentSplit split_;
  data::PackedBatches batches_;
  data::Batch batch_;
  train::StepRows rows_;
  int64_t steps_ = 0;
};

class Allocation : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (kernels::select_cpu_table().name == "ref") GTEST_SKIP() << "the reference allocates";
  }
  // Steps that took memory to work in each time would take hundreds of pieces.
  void TearDown() override { EXPECT_LE(num_growths_, 16 * GetParam().threads); }

  template <class F>
  int64_t allocations_of(F&& f) {
    const int64_t before = num_allocations, growths_before = num_growths;
    f();
    num_growths_ += num_growths - growths_before;
    return num_allocations - before;
  }

  int64_t num_growths_ = 0;
  std::vector<int> kept_;
};

TEST_P(Allocation, NoneAfterTheFirstStep) {
  Loop loop(GetParam());
  EXPECT_GT(allocations_of([&] { loop.step(); }), 0) << "the first step takes what it needs";
  for (int step = 2; step <= 20; ++step) {
    EXPECT_EQ(allocations_of([&] { loop.step(); }), 0) << "step " << step;
  }
  EXPECT_GT(loop.epoch(), 0u) << "the border between two epochs was not seen";
  EXPECT_EQ(allocations_of([&] { loop.validate(); }), 0);
}

// What is taken does not depend on what the first step happened to be.
TEST_P(Allocation, TheFirstStepMayBeTheSmallest) {
  Loop loop(GetParam()), other(GetParam());
  other.step();
  loop.step({.tokens = {0},
             .targets = {1},
             .row_lengths = {1},
             .documents_per_row = {1},
             .document_lengths = {1}});
  EXPECT_EQ(allocations_of([&] { loop.step(other.rows()); }), 0);
}

// Documents of one token each: more than the KV cache was made for. It is made anew, once.
TEST_P(Allocation, MoreDocumentsThanExpected) {
  constexpr int32_t kRow = 40;
  Loop loop(GetParam(), kRow);
  loop.step();
  train::StepRows many{.row_lengths = {kRow, kRow, kRow}, .documents_per_row = {kRow, kRow, kRow}};
  double alone = 0;
  for (int32_t i = 0; i < 3 * kRow; ++i) {
    many.tokens.push_back(i % 7);
    many.targets.push_back(i % 5);
    many.document_lengths.push_back(1);
    alone += loop.validate({.tokens = {i % 7},
                            .targets = {i % 5},
                            .row_lengths = {1},
                            .documents_per_row = {1},
                            .document_lengths = {1}});
  }
  double together = 0;
  EXPECT_GT(allocations_of([&] { together = loop.validate(many); }), 0);
  EXPECT_NEAR(together, alone, 1e-9 * alone);
  EXPECT_EQ(allocations_of([&] { loop.validate(many); }), 0);
}

// The counters see what a step might do: in the caller, and in a worker.
TEST_P(Allocation, ControlsAreCounted) {
  Loop loop(GetParam());
  loop.step();
  train::StepResult copy;
  EXPECT_GT(allocations_of([&] { copy = loop.step(); }), 0) << "a copied result is an allocation";
  ThreadPool pool(GetParam().threads);
  const int64_t growths_before = num_growths_;
  const auto task = [](int thread_idx, int num_threads) {
    if (thread_idx + 1 == num_threads) std::free(std::aligned_alloc(64, 64));
  };
  EXPECT_EQ(allocations_of([&] { pool.run(task); }), 0);
  EXPECT_EQ(num_growths_ - growths_before, 1);
  EXPECT_EQ(allocations_of([&] {
              std::vector<int>(static_cast<std::size_t>(pool.num_threads())).swap(kept_);
            }),
            1);
}

INSTANTIATE_TEST_SUITE_P(All, Allocation,
                         ::testing::Values(Kind{"fp32", tiny_config(DType::F32), 2},
                                           Kind{"v3_bf16", tiny_v3_config(DType::BF16), 3},
                                           Kind{"recomputed", tiny_config(DType::BF16), 1,
                                                model::Recompute::blocks}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

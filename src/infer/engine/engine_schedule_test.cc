// Which prompts a step reads, and how much of them.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/thread_pool.h"
#include "infer/engine/engine_core.h"
#include "infer/engine/engine_sequence.h"
#include "infer/load_model.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

class Counter : public RequestSink {
 public:
  void on_prompt_score(int64_t, const TokenScore&) override {}
  void on_routes(const RouteRows&) override {}
  Next on_token(int32_t, const TokenScore*) override {
    ++num_tokens;
    return Next::more;
  }
  void on_finish(const Finish&) override {}
  void on_error(ErrorKind, const std::string& message) override { FAIL() << message; }
  int num_tokens = 0;
};

class EngineSchedule : public ::testing::Test {
 protected:
  void start(double patience_seconds) {
    core_.emplace(context_, *model_,
                  EngineOptions{.max_batch = 16,
                                .chunk_tokens = 256,
                                .patience_seconds = patience_seconds,
                                .patience_steps = 0},
                  load_, [] {});
  }

  struct Asked {
    int64_t prompt = 1, answer = 100;  // tokens
  };
  std::shared_ptr<Counter> add(const Asked& asked) {
    EngineRequest request;
    request.prompt.assign(static_cast<std::size_t>(asked.prompt), 9);
    request.prompt[0] = static_cast<int32_t>(next_id_ % 60);  // found in no cache
    request.max_tokens = asked.answer;
    const auto sink = std::make_shared<Counter>();
    request.sink = sink;
    core_->add(EngineCore::prepare(*model_, next_id_, next_id_, std::move(request)));
    ++next_id_;
    return sink;
  }
  // Steps up to the first token; -1: more than 50.
  int steps_until_first_token(const Counter& sink) {
    for (int steps = 1; steps <= 50; ++steps) {
      core_->step();
      if (sink.num_tokens > 0) return steps;
    }
    return -1;
  }

  ThreadPool pool_{1};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  std::unique_ptr<model::Model> model_ =
      load_model(context_, std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released", {});
  ExpertLoad load_{{1, 2}, model_->config.n_routed_experts, model_->config.vocab_size};
  std::optional<EngineCore> core_;
  EngineCore::Id next_id_ = 1;
};

constexpr double kNone = 0, kEndless = 1e9;

TEST_F(EngineSchedule, APromptAloneIsReadAtOnce) {
  start(kNone);
  EXPECT_EQ(steps_until_first_token(*add({.prompt = 200})), 1);
}

TEST_F(EngineSchedule, WhileOthersDecodeAPromptIsReadInPieces) {
  start(kNone);
  const auto decoding = add({});
  core_->step();
  ASSERT_EQ(decoding->num_tokens, 1);
  EXPECT_EQ(steps_until_first_token(*add({.prompt = 200})), 7);  // of 32
  EXPECT_EQ(decoding->num_tokens, 1 + 7);
}

TEST_F(EngineSchedule, WhatFitsIntoTheirPatienceIsReadAtOnce) {
  start(kEndless);
  const auto decoding = add({});
  core_->step();
  EXPECT_EQ(steps_until_first_token(*add({.prompt = 200})), 2);  // 32 to learn how long it takes
  EXPECT_EQ(steps_until_first_token(*add({.prompt = 200})), 1);
}

TEST_F(EngineSchedule, AShortPromptBesideALongOneIsReadFirst) {
  start(kNone);
  const auto long_one = add({.prompt = 200});
  const auto short_one = add({.prompt = 24});
  EXPECT_EQ(steps_until_first_token(*short_one), 1);
  EXPECT_EQ(steps_until_first_token(*long_one), 6);  // 8 of it beside the short one, six times 32
}

TEST_F(EngineSchedule, PromptsThatNobodyDecodesAfterFillTheStep) {
  start(kNone);
  const auto long_one = add({.prompt = 200, .answer = 1});
  const auto short_one = add({.prompt = 24, .answer = 1});
  core_->step();
  EXPECT_EQ(long_one->num_tokens, 1);
  EXPECT_EQ(short_one->num_tokens, 1);
}

TEST_F(EngineSchedule, ShortPromptsThatKeepComingDoNotStopALongOne) {
  start(kNone);
  const auto oldest = add({.prompt = 200});
  int steps = 0;
  for (; oldest->num_tokens == 0 && steps < 50; ++steps) {
    add({.prompt = 20, .answer = 2});
    add({.prompt = 20, .answer = 2});
    core_->step();
  }
  EXPECT_LE(steps, 25);  // a quarter of 32 each
}

// Scores of a prompt are computed without the prefix cache, which already knows its beginning: the
// pages that hold it twice must not be missing at the end of a context that fills the pool.
TEST_F(EngineSchedule, APromptThatFillsThePoolIsScoredBesideItsOwnCachedBeginning) {
  for (const int64_t pages : {2, 3, 4}) {
    const int64_t context = pages * kernels::kKeyBlock;
    const auto model =
        load_model(context_, std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released",
                   {.context = context});
    EngineCore core(context_, *model,
                    {.max_batch = 1, .chunk_tokens = kernels::kKeyBlock, .num_pages = pages}, load_,
                    [] {});
    for (EngineCore::Id id = 1; id <= 3; ++id) {
      EngineRequest request;
      request.prompt.assign(static_cast<std::size_t>(context), 9);
      request.max_tokens = 1;
      request.num_top_scores = 0;
      request.scores_prompt = true;
      const auto sink = std::make_shared<Counter>();
      request.sink = sink;
      core.add(EngineCore::prepare(*model, id, id, std::move(request)));
      int steps = 0;
      while (sink->num_tokens == 0 && steps < 50) ++steps, core.step();
      EXPECT_EQ(steps, pages) << "request " << id << " on " << pages << " pages";
      EXPECT_EQ(core.stats().preemptions, 0);
    }
  }
}

}  // namespace
}  // namespace dsmoe::infer

// Memory runs out at any one place of the engine's thread: that costs one request at most.
#include <gtest/gtest.h>

#include "base/failing_memory.h"
#include "infer/engine/engine_test_support.h"

namespace dsmoe::infer {
namespace {

thread_local bool is_engine_thread = false;

// A sink's own memory is not what is tested; and by its sink the engine's thread is known.
class Aside {
 public:
  Aside() { is_engine_thread = false; }
  ~Aside() { is_engine_thread = true; }
};

class SinkAside : public Collector {
 public:
  void on_prompt_score(int64_t position, const TokenScore& score) override {
    const Aside aside;
    Collector::on_prompt_score(position, score);
  }
  void on_routes(const RouteRows& routes) override {
    const Aside aside;
    Collector::on_routes(routes);
  }
  Next on_token(int32_t token, const TokenScore* score) override {
    const Aside aside;
    return Collector::on_token(token, score);
  }
  void on_finish(const Finish& finish) override {
    const Aside aside;
    Collector::on_finish(finish);
  }
  void on_error(ErrorKind kind, const std::string& message) override {
    const Aside aside;
    EXPECT_EQ(kind, ErrorKind::internal);
    Collector::on_error(kind, message);
  }
};

// Two that begin alike and fill a page each; scores, routes, a replay, penalties, another K.
std::vector<EngineRequest> requests_of_all_kinds() {
  std::vector<EngineRequest> requests(8);
  for (int i = 0; i < 70; ++i) requests[0].prompt.push_back(i * 7 % 60);
  requests[1] = requests[0];
  requests[1].sampler.repetition_penalty = 1.2;
  requests[1].wants_routes = true;
  requests[2].prompt = {4, 5, 6};
  requests[2].scores_prompt = true;
  requests[2].num_top_scores = 2;
  requests[3].prompt = {7, 8};
  requests[3].experts_per_token = 1;
  requests[3].replayed = replay({0, 1});
  requests[3].sampler.temperature = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    requests[i].max_tokens = 5;
    requests[4 + i] = requests[i];
    requests[4 + i].owner = 1;
  }
  return requests;
}

class EngineMemory : public ::testing::Test {
 protected:
  // Few pages: what is kept for others is evicted, and sequences wait for each other.
  static constexpr EngineOptions kOptions{.max_batch = 3, .chunk_tokens = 96, .num_pages = 4};

  void SetUp() override {
    FailingMemory::concerns([] { return is_engine_thread; });
    for (const EngineRequest& request : requests_) {
      expected_.push_back(alone(loaded_, request, {.max_batch = 1}));
      EXPECT_EQ(expected_.back().end, "length");
    }
    engine_.emplace(loaded_.context, *loaded_.model, kOptions);
    ask();  // now the thread is known
  }
  void ask() {
    sinks_.clear();
    std::vector<EngineRequest> asked = requests_;
    for (EngineRequest& request : asked) {
      sinks_.push_back(std::make_shared<SinkAside>());
      request.sink = sinks_.back();
    }
    ASSERT_EQ(engine_->submit(std::move(asked)).admission, Admission::accepted);
    for (const auto& sink : sinks_) sink->wait();
  }
  // All answers are right or end for want of memory; returns how many do the latter.
  int count_failed() {
    int count = 0;
    for (std::size_t i = 0; i < sinks_.size(); ++i) {
      const bool has_failed = sinks_[i]->wait().end == "error: out of memory";
      count += has_failed ? 1 : 0;
      if (has_failed) continue;
      EXPECT_EQ(sinks_[i]->wait(), expected_[i]) << "request " << i;
    }
    return count;
  }
  void expect_nothing_is_lost() {
    EngineStats stats = engine_->stats();
    for (int i = 0; i < 600 && stats.running + stats.waiting > 0; ++i, stats = engine_->stats()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(engine_->is_alive());
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages);
  }

  Loaded loaded_{"released", kernels::select_cpu_table()};
  std::vector<EngineRequest> requests_ = requests_of_all_kinds();
  std::vector<Answer> expected_;
  std::vector<std::shared_ptr<SinkAside>> sinks_;
  std::optional<Engine> engine_;
};

TEST_F(EngineMemory, OneThatFailsCostsOneRequestAtMostWhereverItIs) {
  int num_places = 0, num_failed = 0;
  for (bool has_failed = true; has_failed && !HasFailure(); ++num_places) {
    const FailingMemory memory(num_places, 1);
    ask();
    has_failed = memory.has_failed();
    const int failed = count_failed();
    EXPECT_LE(failed, 1) << "after place " << num_places;
    num_failed += failed;
    expect_nothing_is_lost();
  }
  EXPECT_GT(num_places, 300);
  EXPECT_GT(num_failed, 0);
  EXPECT_LT(num_failed, num_places);  // what shares a step does without it
}

TEST_F(EngineMemory, ManyThatFailEndRequestsAndNotTheEngine) {
  for (int place = 0; place < 100 && !HasFailure(); place += 3) {
    {
      const FailingMemory memory(place, 20);
      ask();
      count_failed();
      expect_nothing_is_lost();
    }
    ask();
    EXPECT_EQ(count_failed(), 0) << "after place " << place;
  }
}

TEST_F(EngineMemory, WithoutAnyAllEndAndWithItAgainAllIsWell) {
  {
    const FailingMemory memory(0, int64_t{1} << 40);
    ask();
    EXPECT_EQ(count_failed(), static_cast<int>(requests_.size()));
  }
  ask();
  EXPECT_EQ(count_failed(), 0);
  expect_nothing_is_lost();
}

}  // namespace
}  // namespace dsmoe::infer

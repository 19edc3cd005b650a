// The engine's answers are those of each request alone, whatever runs beside it.
#include "infer/engine/engine.h"

#include <gtest/gtest.h>

#include "infer/engine/engine_test_support.h"
#include "kernels/matmul.h"

namespace dsmoe::infer {
namespace {

// Answers under load, those of the same requests alone, and how it went.
struct Comparison {
  int different = 0;
  EngineStats stats;
};
// `burst` requests arrive at once, then a pause.
Comparison compare(const kernels::KernelTable& table, const EngineOptions& options, uint32_t seed,
                   std::size_t burst = 5) {
  const Loaded loaded("released", table);
  const auto requests = random_requests(*loaded.model, 30, seed);
  Engine engine(loaded.context, *loaded.model, options);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (std::size_t at = 0; at < requests.size(); at += burst) {
    const auto first = requests.begin() + static_cast<std::ptrdiff_t>(at);
    for (auto& sink : send(engine, {first, first + static_cast<std::ptrdiff_t>(burst)})) {
      sinks.push_back(sink);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(seed % 7));
  }
  Comparison result;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Answer expected = alone(loaded, requests[i], {.max_batch = 1});
    result.different += expected == sinks[i]->wait() ? 0 : 1;
  }
  result.stats = engine.stats();
  return result;
}

TEST(Engine, BatchingNeverChangesAnAnswer) {
  // Room for all: sequences share steps and beginnings.
  const Comparison roomy =
      compare(kernels::select_cpu_table(), {.max_batch = 7, .chunk_tokens = 70}, 1);
  EXPECT_EQ(roomy.different, 0);
  EXPECT_GT(roomy.stats.reused_tokens, 0);
  // Too few pages: sequences are preempted and start again.
  const Comparison tight = compare(kernels::select_cpu_table(),
                                   {.max_batch = 12, .chunk_tokens = 33, .num_pages = 7}, 3, 30);
  EXPECT_EQ(tight.different, 0);
  EXPECT_GT(tight.stats.preemptions, 0);
}

// Breaks the rule that a row's result does not depend on the rows beside it.
void product_that_sees_its_neighbours(const kernels::Context& context,
                                      const kernels::MatmulForward& args) {
  kernels::select_cpu_table().matmul_forward(context, args);
  if (args.x.dim(0) < 3) return;
  float* out = args.out.as<float>();
  for (int64_t i = 0; i < args.out.num_elements(); ++i) out[i] *= 1.0f + 1e-6f;
}

TEST(Engine, TheComparisonFindsABatchThatLeaks) {
  kernels::KernelTable table = kernels::select_cpu_table();
  table.matmul_forward = product_that_sees_its_neighbours;
  EXPECT_GT(compare(table, {.max_batch = 7, .chunk_tokens = 70}, 1).different, 0);
}

class EngineTest : public ::testing::Test {
 protected:
  Loaded loaded_{"released", kernels::select_cpu_table()};
  EngineRequest request(int64_t max_tokens = 20) {
    EngineRequest request;
    for (int i = 0; i < 150; ++i) request.prompt.push_back(i * 7 % 60);
    request.max_tokens = max_tokens;
    request.seed = 5;
    return request;
  }
};

TEST_F(EngineTest, AnswersLikeGenerate) {
  const EngineRequest asked = request();
  Session session(loaded_.context, *loaded_.model, {});
  const Generation expected =
      generate(session, asked.prompt, {.seed = asked.seed, .max_tokens = asked.max_tokens},
               [](int32_t) { return Next::more; });
  EXPECT_EQ(alone(loaded_, asked).tokens, expected.tokens);
}

// Without scores the device finds the most likely token, with them the sampler does.
TEST_F(EngineTest, TheMostLikelyTokenIsTheSameWhoeverFindsIt) {
  EngineRequest asked = request(40);
  asked.sampler.temperature = 0;
  const Answer plain = alone(loaded_, asked);
  asked.num_top_scores = 1;
  const Answer scored = alone(loaded_, asked);
  EXPECT_EQ(plain.tokens, scored.tokens);
  EXPECT_EQ(plain.tokens.size(), 40u);
  // What needs the logits still gets them.
  asked.num_top_scores = -1;
  asked.sampler.bias = {{.token = plain.tokens[0], .bias = -100}};
  EXPECT_NE(alone(loaded_, asked).tokens[0], plain.tokens[0]);
  asked.sampler.bias.clear();
  asked.stop_ids = {plain.tokens[0]};
  EXPECT_TRUE(alone(loaded_, asked).tokens.empty());
  asked.min_tokens = 1;
  EXPECT_NE(alone(loaded_, asked).tokens.at(0), plain.tokens[0]);
}

int num_recordings = 0;

// A device that records: here the ops run while they are recorded, and the first replay adds
// nothing.
TEST_F(EngineTest, ADecodingStepIsRecordedWhereTheDeviceCan) {
  kernels::KernelTable table = kernels::select_cpu_table();
  int recording = 0;
  static void* const kRecording = &num_recordings;
  table.recording = {.begin = [](const kernels::Context&) { ++num_recordings; },
                     .end = [](const kernels::Context&) { return kRecording; },
                     .replay = [](const kernels::Context&, void*) {},
                     .release = [](void*) {}};
  EngineRequest asked = request(1);
  asked.prompt = {5};
  const Answer expected = alone(loaded_, asked);
  num_recordings = 0;
  loaded_.context.table = &table;
  loaded_.context.stream = &recording;
  EXPECT_EQ(alone(loaded_, asked), expected);
  EXPECT_EQ(num_recordings, 1);
}

TEST_F(EngineTest, ReusesPrefixesOfTheSameOwnerAndTopKOnly) {
  Engine engine(loaded_.context, *loaded_.model, {});
  const auto reused = [&](EngineRequest asked) {
    const auto sinks = send(engine, {std::move(asked)});
    sinks[0]->wait();
    return sinks[0]->reused;
  };
  EXPECT_EQ(reused(request()), 0);
  EXPECT_EQ(reused(request()), 128);
  EngineRequest other = request();
  other.owner = 1;
  EXPECT_EQ(reused(other), 0);
  other = request();
  other.experts_per_token = 2;
  EXPECT_EQ(reused(other), 0);
  other = request();
  other.replayed = replay({0, 1, 2, 0, 1, 2});
  EXPECT_EQ(reused(other), 0);
  other = request();
  other.prompt[70] = 1;
  EXPECT_EQ(reused(other), 64);
}

TEST_F(EngineTest, OwnRoutesReplayedGiveTheSameAnswer) {
  EngineRequest asked = request();
  asked.wants_routes = true;
  asked.num_top_scores = 2;
  const Answer first = alone(loaded_, asked);
  asked.replayed = replay(first.routes);
  EXPECT_EQ(alone(loaded_, asked), first);
  std::vector<int32_t> others = first.routes;
  for (int32_t& expert : others) expert = (expert + 3) % 8;
  asked.replayed = replay(others);
  EXPECT_NE(alone(loaded_, asked).scores, first.scores);
}

// Holds the engine's thread at its first token until told to go on.
class Gate : public Collector {
 public:
  Next on_token(int32_t token, const TokenScore* score) override {
    if (!std::exchange(reached_, true)) {
      at_gate_.set_value();
      open_.get_future().wait();
    }
    return Collector::on_token(token, score);
  }
  void wait_until_reached() { at_gate_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  bool reached_ = false;
  std::promise<void> at_gate_, open_;
};

// A request that runs, and goes on when its gate is opened.
struct Gated {
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::vector<Engine::Id> ids;
};
Gated send_gate(Engine& engine, EngineRequest request) {
  Gated gated;
  request.sink = gated.gate;
  std::vector<EngineRequest> one{std::move(request)};
  gated.ids = engine.submit(std::move(one)).ids;
  gated.gate->wait_until_reached();
  return gated;
}

class Flushed : public Gate {
 public:
  void flush() override { ++num_flushes; }
  int num_flushes = 0;
};

TEST_F(EngineTest, SinksAreFlushedBeforeAPromptIsRead) {
  Engine engine(loaded_.context, *loaded_.model, {});
  const auto flushes = [&](bool beside_a_prompt) {
    const auto sink = std::make_shared<Flushed>();
    EngineRequest asked = request(4);
    asked.prompt = {5};
    asked.sink = sink;
    std::vector<EngineRequest> one{asked};
    engine.submit(std::move(one));
    sink->wait_until_reached();
    std::vector<std::shared_ptr<Collector>> others;
    if (beside_a_prompt) others = send(engine, {request(1)});
    sink->open();
    sink->wait();
    for (const auto& other : others) other->wait();
    return sink->num_flushes;
  };
  EXPECT_EQ(flushes(false), 0);
  EXPECT_GT(flushes(true), 0);
}

TEST_F(EngineTest, CancellingFreesPages) {
  Engine engine(loaded_.context, *loaded_.model, {});
  EngineRequest asked = request(60);
  asked.replayed = replay({0, 1, 2, 0, 1, 2});  // leaves nothing in the prefix cache
  const auto [gate, ids] = send_gate(engine, asked);
  engine.cancel(ids);
  gate->open();
  EXPECT_EQ(gate->wait().end, "cancelled");
  for (int i = 0; i < 2000 && engine.stats().free_pages < engine.stats().pages; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(engine.stats().free_pages, engine.stats().pages);
  EXPECT_EQ(engine.stats().running, 0);
}

TEST_F(EngineTest, TheQueueHoldsWhatItSaysBesideTheBatch) {
  Engine engine(loaded_.context, *loaded_.model, {.max_batch = 1, .max_queue = 3});
  const auto submit = [&](std::size_t count) {
    std::vector<EngineRequest> many(count, request(2));
    for (EngineRequest& each : many) each.sink = std::make_shared<Collector>();
    return engine.submit(std::move(many)).admission;
  };
  EXPECT_THROW(submit(5), Error);  // could never be taken: later is no help
  const auto gate = send_gate(engine, request(2)).gate;
  EXPECT_EQ(submit(4), Admission::full);
  EXPECT_EQ(submit(3), Admission::accepted);
  EXPECT_EQ(submit(1), Admission::full);
  gate->open();
  gate->wait();
  for (int i = 0; i < 2000 && engine.stats().running + engine.stats().waiting > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(submit(4), Admission::accepted);  // an idle batch takes its share at once
}

// In which order sequences of one place in the batch run, by name.
class Order {
 public:
  class Sink : public Collector {
   public:
    Sink(Order& order, char name) : order_(order), name_(name) {}
    void on_finish(const Finish& finish) override {
      order_.names_ += name_;
      Collector::on_finish(finish);
    }

   private:
    Order& order_;
    char name_;
  };
  void send(Engine& engine, const EngineRequest& request, const std::string& names) {
    std::vector<EngineRequest> requests(names.size(), request);
    for (std::size_t i = 0; i < names.size(); ++i) {
      sinks_.push_back(std::make_shared<Sink>(*this, names[i]));
      requests[i].sink = sinks_.back();
    }
    EXPECT_EQ(engine.submit(std::move(requests)).admission, Admission::accepted);
  }
  const std::string& wait() {
    for (const auto& sink : sinks_) sink->wait();
    return names_;
  }

 private:
  std::string names_;  // of the engine's thread until all have finished
  std::vector<std::shared_ptr<Sink>> sinks_;
};

TEST_F(EngineTest, AManyfoldRequestDoesNotKeepOthersWaiting) {
  Engine engine(loaded_.context, *loaded_.model, {.max_batch = 1});
  const auto gate = send_gate(engine, request(2)).gate;
  Order order;
  order.send(engine, request(1), "aaaa");
  order.send(engine, request(1), "b");
  order.send(engine, request(1), "cc");
  gate->open();
  EXPECT_EQ(order.wait(), "abcacaa");
}

TEST_F(EngineTest, OwnersTakeTurns) {
  Engine engine(loaded_.context, *loaded_.model, {.max_batch = 1});
  const auto gate = send_gate(engine, request(2)).gate;
  Order order;
  EngineRequest mine = request(1), other = request(1);
  other.owner = 1;
  for (int i = 0; i < 4; ++i) order.send(engine, mine, "m");
  for (int i = 0; i < 2; ++i) order.send(engine, other, "o");
  gate->open();
  EXPECT_EQ(order.wait(), "momomm");
}

TEST_F(EngineTest, ADeadThreadIsSeen) {
  Engine engine(loaded_.context, *loaded_.model, {.max_batch = 1});
  EXPECT_TRUE(engine.is_alive());
  auto waiting = send(engine, {request(60), request(60)});
  engine.inject(Engine::Fault::thrown);
  for (auto& sink : waiting) {
    const std::string end = sink->wait().end;
    EXPECT_TRUE(end.starts_with("error: the engine has died") || end == "length") << end;
  }
  for (int i = 0; i < 12000 && engine.is_alive(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(engine.is_alive());
  std::vector<EngineRequest> late{request()};
  late[0].sink = std::make_shared<Collector>();
  EXPECT_EQ(engine.submit(std::move(late)).admission, Admission::dead);
}

// What fails behind a pass is the device, not a sequence: nothing is computed twice, everyone is
// told, and the thread ends, so that whoever asks after its health hears of it.
TEST_F(EngineTest, AFailedDeviceEndsTheThread) {
  static std::atomic<int> num_failures{0};
  static const kernels::KernelTable& cpu = kernels::select_cpu_table();
  kernels::KernelTable table = cpu;
  table.sample_forward = [](const kernels::Context&, const kernels::SampleForward&) {
    ++num_failures;
    fail(ErrorKind::internal, "the device has failed");
  };
  table.memory.zero = [](const kernels::Context& context, void* data, std::size_t bytes) {
    if (num_failures > 0) fail(ErrorKind::internal, "the device has failed");
    cpu.memory.zero(context, data, bytes);
  };
  const Loaded loaded("released", table);
  Engine engine(loaded.context, *loaded.model, {.max_batch = 4});
  auto sinks = send(engine, {request(), request(), request()});
  for (auto& sink : sinks) {
    EXPECT_EQ(sink->wait().end, "error: the engine has died: the device has failed");
  }
  EXPECT_EQ(num_failures, 1);
  EXPECT_FALSE(engine.is_alive());
}

TEST_F(EngineTest, ASilentThreadIsNotAlive) {
  Engine engine(loaded_.context, *loaded_.model, {.stall_seconds = 0.3});
  const auto becomes = [&](bool alive) {
    for (int i = 0; i < 6000; ++i) {
      if (engine.is_alive() == alive) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  engine.inject(Engine::Fault::stall);
  EXPECT_TRUE(becomes(false));
  engine.inject(Engine::Fault::none);
  EXPECT_TRUE(becomes(true));
}

TEST_F(EngineTest, RefusesWhatCouldNeverRun) {
  Engine engine(loaded_.context, *loaded_.model, {});
  const auto refused = [&](EngineRequest bad) {
    bad.sink = std::make_shared<Collector>();
    std::vector<EngineRequest> one{bad};
    EXPECT_THROW(engine.submit(std::move(one)), Error);
  };
  EngineRequest bad = request();
  bad.prompt.clear();
  refused(bad);
  bad = request();
  bad.prompt[3] = 1000000;
  refused(bad);
  bad = request(loaded_.model->context);
  refused(bad);
  bad = request();
  bad.experts_per_token = 1000;
  refused(bad);
  bad = request();
  bad.sampler.top_p = 2;
  refused(bad);
}

}  // namespace
}  // namespace dsmoe::infer

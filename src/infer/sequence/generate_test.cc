// Generation is a function of model, prompt, options and seed: not of threads, chunks or history.
#include "infer/sequence/generate.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens" / name;
}

// A model on a pool of its own.
struct Loaded {
  explicit Loaded(const std::string& name, int threads = 1) : pool(threads) {
    model = load_model(context, golden(name), {});
  }
  ThreadPool pool;
  kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  std::unique_ptr<model::Model> model;
};

const std::vector<int32_t> kPrompt{5, 17, 3, 42, 8, 8, 30, 2, 11};

std::vector<int32_t> answer(Session& session, const GenerateOptions& options,
                            const std::vector<int32_t>& prompt = kPrompt) {
  return generate(session, prompt, options, [](int32_t) { return Next::more; }).tokens;
}

GenerateOptions sampled(uint64_t seed, int64_t max_tokens = 40) {
  return {.sampler = {.temperature = 1.2, .top_p = 0.95}, .seed = seed, .max_tokens = max_tokens};
}

TEST(Generate, SameAnswerForAnyThreadsAndChunks) {
  for (const char* name : {"released", "v3_bf16", "odd"}) {
    Loaded first(name);
    Session session(first.context, *first.model, {});
    const std::vector<int32_t> expected = answer(session, sampled(1));
    ASSERT_EQ(expected.size(), 40u);
    for (const int threads : {2, 3}) {
      Loaded other(name, threads);
      for (const int64_t chunk : {1, 2, 5}) {
        Session again(other.context, *other.model, {.chunk_tokens = chunk});
        EXPECT_EQ(answer(again, sampled(1)), expected) << name << threads << chunk;
      }
    }
    EXPECT_NE(answer(session, sampled(2)), expected);
  }
}

TEST(Generate, GreedyIsTheArgmaxOfTheLogits) {
  Loaded loaded("released");
  Session session(loaded.context, *loaded.model, {});
  const GenerateOptions options{.sampler = {.temperature = 0}, .max_tokens = 12};
  const std::vector<int32_t> tokens = answer(session, options);
  std::vector<int32_t> all = kPrompt;
  for (const int32_t token : tokens) {
    Session fresh(loaded.context, *loaded.model, {});
    fresh.assign(all);
    const auto logits = fresh.logits();
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    all.push_back(token);
  }
}

TEST(Session, ReusesTheCommonPrefixWithoutChangingBits) {
  for (const char* name : {"released", "v3_bf16"}) {
    Loaded loaded(name);
    Session session(loaded.context, *loaded.model, {.chunk_tokens = 4});
    std::vector<int32_t> longer(100, 7), other = longer;
    for (std::size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<int32_t>(i * 5 % 60);
    other = longer;
    other[70] = 1;
    session.assign(longer);
    EXPECT_EQ(session.num_reused(), 0);
    session.assign(other);
    EXPECT_EQ(session.num_reused(), 70);
    const std::vector<float> reused(session.logits().begin(), session.logits().end());
    Session fresh(loaded.context, *loaded.model, {});
    fresh.assign(other);
    EXPECT_EQ(std::vector<float>(fresh.logits().begin(), fresh.logits().end()), reused);
    session.assign(other);
    EXPECT_EQ(session.num_reused(), 99);  // the last token gives the logits
    EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), reused);
    session.assign(longer);
    EXPECT_NE(std::vector<float>(session.logits().begin(), session.logits().end()), reused);
  }
}

TEST(Generate, SecondTurnReusesTheFirst) {
  Loaded loaded("released");
  Session session(loaded.context, *loaded.model, {});
  std::vector<int32_t> conversation = kPrompt;
  const std::vector<int32_t> first = answer(session, sampled(1, 10));
  conversation.insert(conversation.end(), first.begin(), first.end());
  conversation.push_back(20);
  const Generation second =
      generate(session, conversation, sampled(1, 10), [](int32_t) { return Next::more; });
  // All of the first turn but its last token, which was chosen and never computed.
  EXPECT_EQ(second.reused_tokens, static_cast<int64_t>(conversation.size()) - 2);
  Session fresh(loaded.context, *loaded.model, {});
  EXPECT_EQ(answer(fresh, sampled(1, 10), conversation), second.tokens);
}

TEST(Generate, EndsForEachReason) {
  Loaded loaded("released");
  Session session(loaded.context, *loaded.model, {.max_positions = 20});
  const auto more = [](int32_t) { return Next::more; };
  EXPECT_EQ(generate(session, kPrompt, sampled(1, 3), more).reason, FinishReason::length);
  const Generation full = generate(session, kPrompt, sampled(1, 0), more);
  EXPECT_EQ(full.reason, FinishReason::context);
  EXPECT_EQ(full.tokens.size(), 20 - kPrompt.size() + 1);

  GenerateOptions options = sampled(1, 10);
  options.stop_ids = {full.tokens[4]};
  const Generation stopped = generate(session, kPrompt, options, more);
  EXPECT_EQ(stopped.reason, FinishReason::stop_token);
  EXPECT_LE(stopped.tokens.size(), 4u);
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), full.tokens.begin()));

  int seen = 0;
  const Generation by_callback = generate(session, kPrompt, sampled(1, 10), [&](int32_t) {
    return ++seen == 2 ? Next::stop : Next::more;
  });
  EXPECT_EQ(by_callback.reason, FinishReason::stopped);
  EXPECT_EQ(by_callback.tokens.size(), 2u);

  std::atomic<bool> cancelled{false};
  options = sampled(1, 10);
  options.cancelled = &cancelled;
  const Generation cut = generate(session, kPrompt, options, [&](int32_t) {
    cancelled = true;
    return Next::more;
  });
  EXPECT_EQ(cut.reason, FinishReason::cancelled);
  EXPECT_EQ(cut.tokens.size(), 1u);
  // Cancelled before the first chunk of a new prompt; and usable afterwards.
  EXPECT_EQ(generate(session, std::vector<int32_t>{9, 9}, options, more).reason,
            FinishReason::cancelled);
  EXPECT_EQ(answer(session, sampled(1, 3)),
            std::vector<int32_t>(full.tokens.begin(), full.tokens.begin() + 3));
}

TEST(Session, RecordsTheRoutingOfEveryToken) {
  Loaded loaded("released");
  Session session(loaded.context, *loaded.model, {.chunk_tokens = 4, .record_routing = true});
  session.assign(kPrompt);
  session.append(3);
  const Routes& routes = session.routes();
  EXPECT_EQ(moe_layers(loaded.model->config), (std::vector<int64_t>{1, 2}));
  ASSERT_EQ(routes.num_tokens(), static_cast<int64_t>(kPrompt.size()) + 1);
  ASSERT_EQ(routes.num_layers, 2);
  for (int64_t t = 0; t < routes.num_tokens(); ++t) {
    const RoutesView slots = routes.view().slots(t, 0);
    EXPECT_EQ(slots.index.size(), 3u);
    EXPECT_GE(slots.gate[0], slots.gate[1]);
  }
  Session whole(loaded.context, *loaded.model, {.experts_per_token = 2, .record_routing = true});
  whole.assign(kPrompt);
  EXPECT_EQ(whole.routes().view().slots(0, 0).index.size(), 2u);
}

TEST(Session, RefusesBadPrompts) {
  Loaded loaded("released");
  Session session(loaded.context, *loaded.model, {.max_positions = 20});
  EXPECT_THROW(session.assign(std::vector<int32_t>{}), Error);
  EXPECT_THROW(session.assign(std::vector<int32_t>{1, 67}), Error);
  EXPECT_THROW(session.assign(std::vector<int32_t>(21, 1)), Error);
  EXPECT_THROW(Session(loaded.context, *loaded.model, {.experts_per_token = 9}), Error);
  session.assign(std::vector<int32_t>(20, 1));
  EXPECT_THROW(session.append(1), Error);
}

}  // namespace
}  // namespace dsmoe::infer

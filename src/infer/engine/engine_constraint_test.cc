// Constrained answers: in the engine, alone and beside others, and from generate().
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "base/thread_pool.h"
#include "infer/engine/engine.h"
#include "infer/load_model.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenScore> scores;
  std::vector<float> embedding;
  std::string end;
  FinishReason reason = FinishReason::cancelled;
};

class Collector : public RequestSink {
 public:
  void on_prompt_score(int64_t, const TokenScore&) override {}
  void on_routes(const RouteRows&) override {}
  void on_embedding(std::span<const float> embedding) override {
    EXPECT_TRUE(answer.embedding.empty());  // told once
    answer.embedding.assign(embedding.begin(), embedding.end());
  }
  Next on_token(int32_t token, const TokenScore* score) override {
    answer.tokens.push_back(token);
    if (score != nullptr) answer.scores.push_back(*score);
    return Next::more;
  }
  void on_finish(const Finish& finish) override {
    answer.end = name_of(finish.reason);
    answer.reason = finish.reason;
    done.set_value();
  }
  void on_error(ErrorKind, const std::string& message) override {
    answer.end = "error: " + message;
    done.set_value();
  }
  Answer answer;
  std::promise<void> done;
};

// A small model whose tokens are characters.
class EngineConstraint : public ::testing::Test {
 protected:
  EngineConstraint() : pool_(2) {
    context_ = {.table = &kernels::select_cpu_table(), .pool = &pool_};
    model_ = load_model(context_,
                        std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released", {});
    std::vector<std::string> bytes(static_cast<std::size_t>(model_->config.vocab_size));
    static constexpr std::string_view kCharacters = "{}[]\":,0123456789-.+eE abcdtrufalsn\\";
    for (std::size_t t = 0; t < kCharacters.size(); ++t) bytes[t + 3] = kCharacters.substr(t, 1);
    bytes[kCharacters.size() + 3] = "\":";
    bytes[kCharacters.size() + 4] = "bcd";
    vocabulary_ = std::make_shared<const constrain::Vocabulary>(std::move(bytes));
  }

  EngineRequest request(const constrain::Shape& shape, uint64_t seed, double temperature) const {
    return {.prompt = {5, 6, 7},
            .sampler = {.temperature = temperature},
            .seed = seed,
            .max_tokens = 40,
            .stop_ids = {1},
            .constraint = std::make_shared<const constrain::Constraint>(shape, vocabulary_)};
  }
  std::vector<Answer> run(std::vector<EngineRequest> requests,
                          const EngineOptions& options = {}) const {
    Engine engine(context_, *model_, options);
    std::vector<std::shared_ptr<Collector>> sinks;
    for (EngineRequest& r : requests) {
      r.sink = sinks.emplace_back(std::make_shared<Collector>());
    }
    EXPECT_EQ(engine.submit(std::move(requests)).admission, Admission::accepted);
    std::vector<Answer> answers;
    for (const auto& sink : sinks) {
      sink->done.get_future().get();
      answers.push_back(sink->answer);
    }
    num_preemptions_ = engine.stats().preemptions;
    return answers;
  }
  Answer run_alone(const EngineRequest& r) const { return run({r})[0]; }
  std::string text_of(const Answer& answer) const {
    std::string text;
    for (const int32_t token : answer.tokens) text += vocabulary_->bytes(token);
    return text;
  }
  static constrain::Shape abc() { return constrain::Shape::regex("[ab]{3,6}cd?", "regex"); }
  static constrain::Shape object() {
    return constrain::Shape::schema(
        parse_ordered_json(R"({"properties": {"a": {"type": "integer"}, "b": {"type": "array",
                               "items": {"type": "boolean"}}}, "required": ["a", "b"]})",
                           "schema"),
        "schema");
  }

  ThreadPool pool_;
  kernels::Context context_;
  std::unique_ptr<model::Model> model_;
  std::shared_ptr<const constrain::Vocabulary> vocabulary_;
  mutable int64_t num_preemptions_ = 0;  // of the last run
};

TEST_F(EngineConstraint, AnswersLookAsTheyMust) {
  std::set<std::string> texts;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Answer answer = run_alone(request(abc(), seed, 1));
    EXPECT_EQ(answer.end, "stop");
    const std::string text = text_of(answer);
    texts.insert(text);
    const std::size_t letters = text.find_first_not_of("ab");
    ASSERT_TRUE(letters >= 3 && letters <= 6) << text;
    EXPECT_TRUE(text.substr(letters) == "c" || text.substr(letters) == "cd") << text;
    const Answer json = run_alone(request(object(), seed, 1));
    EXPECT_EQ(json.end, "stop");
    EXPECT_TRUE(Json::parse(text_of(json))["a"].is_number_integer()) << text_of(json);
  }
  EXPECT_GT(texts.size(), 4u);
}

TEST_F(EngineConstraint, GreedyTakesTheMostLikelyAllowedToken) {
  EngineRequest free = request(abc(), 0, 0);
  free.constraint = nullptr;
  free.max_tokens = 1;
  free.num_top_scores = static_cast<int>(model_->config.vocab_size);
  const TokenScore all = run_alone(free).scores.at(0);
  const Answer constrained = run_alone(request(abc(), 0, 0));
  for (const auto& [token, log_prob] : all.top) {
    if (vocabulary_->bytes(token) != "a" && vocabulary_->bytes(token) != "b") continue;
    EXPECT_EQ(constrained.tokens[0], token);
    break;
  }
  // Log-probabilities are the model's own: the mask does not enter them.
  EngineRequest scored = request(abc(), 0, 0);
  scored.num_top_scores = 2;
  const TokenScore first = run_alone(scored).scores.at(0);
  EXPECT_EQ(first.top[0], all.top[0]);
}

TEST_F(EngineConstraint, NothingDependsOnWhatRunsBeside) {
  std::vector<EngineRequest> requests;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    requests.push_back(request(seed % 3 == 0 ? abc() : object(), seed, seed % 4 == 3 ? 0 : 1));
    EngineRequest& r = requests.back();
    r.choice = static_cast<uint32_t>(seed % 2);
    if (seed % 3 == 2) r.constraint = nullptr;
    if (seed % 2 == 1) r.num_top_scores = 3;
    if (seed % 4 == 2) r.sampler.presence_penalty = 1.5;
    if (seed == 4) r.sampler.bias = {{.token = 3, .bias = -100}};
    if (seed == 5) r.sampler.top_k = 2;
  }
  const std::vector<Answer> together = run(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Answer alone = run_alone(requests[i]);
    EXPECT_EQ(together[i].tokens, alone.tokens) << i;
    EXPECT_EQ(together[i].end, alone.end) << i;
    ASSERT_EQ(together[i].scores.size(), alone.scores.size());
    for (std::size_t t = 0; t < alone.scores.size(); ++t) {
      EXPECT_EQ(together[i].scores[t].log_prob, alone.scores[t].log_prob);
      EXPECT_EQ(together[i].scores[t].top, alone.scores[t].top);
    }
  }
}

// Pages for one context only: constrained answers wait in their middle and start again, embeddings
// in the middle of their prompt, and both find beginnings that others have left.
TEST_F(EngineConstraint, NothingDependsOnPreemptionAndSharedBeginnings) {
  const auto list = constrain::Shape::schema(
      parse_ordered_json(R"({"type": "array", "items": {"type": "integer"}, "minItems": 30})", "s"),
      "s");
  std::vector<EngineRequest> requests;
  for (uint64_t i = 0; i < 18; ++i) {
    EngineRequest r = request(i % 2 == 0 ? list : object(), i, 1);
    r.prompt.clear();
    const uint64_t length = 40 + 29 * i % 90;
    for (uint64_t t = 0; t < length; ++t) {
      r.prompt.push_back(static_cast<int32_t>((t * t + (t < 70 ? i % 2 : i)) % 60 + 3));
    }
    r.max_tokens = i % 3 == 2 ? 0 : 120;
    if (i % 3 == 2) r.pooling = i % 2 == 0 ? Pooling::mean : Pooling::last;
    if (i % 3 == 2) r.constraint = nullptr;
    requests.push_back(std::move(r));
  }
  const std::vector<Answer> together =
      run(requests, {.max_batch = 6, .chunk_tokens = 48, .num_pages = 4});
  EXPECT_GT(num_preemptions_, 3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Answer alone = run_alone(requests[i]);
    EXPECT_EQ(together[i].tokens, alone.tokens) << i;
    EXPECT_EQ(together[i].embedding, alone.embedding) << i;
    EXPECT_EQ(together[i].end, alone.end) << i;
    EXPECT_EQ(alone.embedding.empty(), requests[i].pooling == Pooling::none);
  }
}

TEST_F(EngineConstraint, GenerateGivesTheSame) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const EngineRequest asked = request(object(), seed, 1);
    const Answer answer = run_alone(asked);
    Session session(context_, *model_, {});
    const Generation generated = generate(session, asked.prompt,
                                          {.sampler = asked.sampler,
                                           .seed = seed,
                                           .max_tokens = asked.max_tokens,
                                           .stop_ids = asked.stop_ids,
                                           .constraint = asked.constraint},
                                          [](int32_t) { return Next::more; });
    EXPECT_EQ(generated.tokens, answer.tokens);
    EXPECT_EQ(generated.reason, answer.reason);
  }
}

TEST_F(EngineConstraint, TheLengthClosesAnAnswer) {
  const auto list = constrain::Shape::schema(
      parse_ordered_json(R"({"type": "array", "items": {"type": "integer"}, "minItems": 3})", "s"),
      "s");
  for (int64_t length : {7, 8, 12, 40}) {  // [0,0,0]
    for (uint64_t seed = 0; seed < 10; ++seed) {
      EngineRequest r = request(list, seed, 1);
      r.max_tokens = length;
      r.stop_ids.clear();
      const Answer answer = run_alone(r);
      EXPECT_EQ(answer.end, "stop") << text_of(answer);
      EXPECT_LE(static_cast<int64_t>(answer.tokens.size()), length);
      EXPECT_GE(Json::parse(text_of(answer)).size(), 3u);
    }
  }
  EngineRequest too_short = request(list, 1, 1);
  too_short.max_tokens = 4;
  const Answer cut = run_alone(too_short);
  EXPECT_EQ(cut.end, "length");
  EXPECT_EQ(text_of(cut).substr(0, 1), "[");
}

// What closes an answer is told apart from what ends it.
TEST_F(EngineConstraint, AnswersThatTheLengthClosedSaySo) {
  EngineRequest r = request(constrain::Shape::regex("[ab]{2,30}c", "regex"), 1, 1);
  r.stop_ids.clear();
  r.max_tokens = 4;
  EXPECT_EQ(run_alone(r).reason, FinishReason::closed);
  EXPECT_EQ(text_of(run_alone(r)).back(), 'c');
  EngineRequest fixed = request(constrain::Shape::literal("ab"), 1, 1);
  fixed.max_tokens = 2;
  EXPECT_EQ(run_alone(fixed).reason, FinishReason::complete);
  EngineRequest open = request(constrain::Shape::regex("a*", "regex"), 1, 1);
  open.stop_ids.clear();
  open.max_tokens = 3;
  EXPECT_EQ(run_alone(open).reason, FinishReason::closed);
}

// The bits of an answer with banned texts are its own, whatever runs beside it.
TEST_F(EngineConstraint, RestrictionsDoNotDependOnWhatRunsBeside) {
  const auto restricted = [&](uint64_t seed, std::vector<std::string> texts) {
    EngineRequest r = request(abc(), seed, 1);
    r.constraint = nullptr;
    r.restriction = std::make_shared<const constrain::Restriction>(
        constrain::RestrictionRules{.no_texts = std::move(texts)}, vocabulary_);
    return r;
  };
  std::vector<EngineRequest> requests;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    requests.push_back(restricted(seed, {"a", "1", "\":"}));
    EngineRequest free = restricted(seed, {});
    free.restriction = nullptr;
    requests.push_back(free);
    requests.push_back(request(object(), seed, 1));
  }
  const std::vector<Answer> together = run(requests);
  int num_changed = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run_alone(requests[i]).tokens, together[i].tokens) << i;
    if (i % 3 != 0) continue;
    const std::string text = text_of(together[i]);
    EXPECT_EQ(text.find_first_of("a1"), std::string::npos) << text;
    EXPECT_EQ(text.find("\":"), std::string::npos) << text;
    num_changed += together[i].tokens != together[i + 1].tokens ? 1 : 0;
  }
  EXPECT_GT(num_changed, 0);
}

// Each half is prepared without a fault; what both may begin at one place is more than an answer
// may follow, which shows when the first token is taken.
TEST_F(EngineConstraint, TooManyWaysEndTheirOwnRequestOnly) {
  const auto list = [](int first, int last) {
    OrderedJson any = OrderedJson::array();
    for (int i = first; i < last; ++i) any.push_back({{"$ref", fmt::format("#/$defs/{}", i)}});
    return OrderedJson{{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", any}}}};
  };
  OrderedJson defs;
  for (int i = 0; i < 600; ++i) defs[std::to_string(i)] = {{"const", i}};
  defs["low"] = list(0, 300);
  defs["high"] = list(300, 600);
  OrderedJson low{{"$ref", "#/$defs/low"}}, high{{"$ref", "#/$defs/high"}};
  const OrderedJson schema{{"anyOf", {low, high}}, {"$defs", defs}};
  EngineRequest bad = request(constrain::Shape::schema(schema, "schema"), 1, 1);
  const std::vector<Answer> answers = run({request(abc(), 1, 1), bad, request(abc(), 2, 1)});
  EXPECT_EQ(answers[0].end, "stop");
  EXPECT_EQ(answers[1].end, "error: the constraint is too ambiguous");
  EXPECT_EQ(answers[2].end, "stop");
}

TEST_F(EngineConstraint, StopIdsComeAtTheEndOnly) {
  // Token 3 is "{": as a stop id it may only come where the text may end.
  EngineRequest r = request(constrain::Shape::regex("a*", "regex"), 3, 1);
  r.stop_ids = {3};
  r.sampler.bias = {{.token = 3, .bias = 100}};
  EXPECT_EQ(run_alone(r).tokens.size(), 0u);
  r.min_tokens = 5;
  const Answer longer = run_alone(r);
  EXPECT_EQ(text_of(longer), "aaaaa");
  EXPECT_EQ(longer.reason, FinishReason::stop_token);
  // Nothing can follow: it ends before min_tokens, and without a stop id.
  EngineRequest fixed = request(constrain::Shape::literal("ab"), 3, 1);
  fixed.min_tokens = 10;
  fixed.sampler.bias = {{.token = 1, .bias = 100}};
  const Answer exact = run_alone(fixed);
  EXPECT_EQ(text_of(exact), "ab");
  EXPECT_EQ(exact.reason, FinishReason::complete);
  // Half of an answer is not told as a whole one.
  EngineRequest stuck = request(constrain::Shape::literal("a{b"), 3, 1);
  stuck.stop_ids = {3};
  const Answer half = run_alone(stuck);
  EXPECT_EQ(text_of(half), "a");
  EXPECT_EQ(half.end, "error: the constraint asks for a token that is one of stop_token_ids");
}

}  // namespace
}  // namespace dsmoe::infer

// Weights and activations that are NaN or infinite end in the same error on every device, told by
// layer and token; who shares a batch with them goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <limits>
#include <new>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "infer/engine/engine.h"
#include "infer/measure/evaluate.h"
#include "infer/measure/specialisation.h"
#include "infer/sequence/greedy.h"
#include "infer/sequence/session.h"
#include "infer/sequence/trace.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/elements.h"
#include "kernels/table.h"
#include "model/initialise.h"
#include "model/training_pass.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;
using Tokens = std::vector<int32_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kVocabulary = 304;
constexpr int32_t kBadId = 300;  // no other token of a prompt has it
constexpr const char* kWhy =
    " are not finite; the weights or the activations are broken (NaN or infinity)";

std::string scores_of(int64_t layer, int64_t token) {
  return fmt::format("layer {}: the router's scores of token {}{}", layer, token, kWhy);
}

// Elements [first, first + count) of a tensor.
struct Damage {
  std::string tensor;
  int64_t first = 0, count = 1;
  double value = kNan;
};

class DamagedWeights : public model::ParameterSource {
 public:
  DamagedWeights(const model::ModelConfig& config, const Damage& damage)
      : weights_(config, 5), damage_(damage) {}
  model::StoredTensor tensor(const model::Parameter& parameter) override {
    const model::StoredTensor stored = weights_.tensor(parameter);
    const tensor::TensorView& view = stored.elements;
    if (parameter.name == damage_.tensor) {
      for (int64_t i = 0; i < damage_.count; ++i)
        kernels::write_element(view.data, view.dtype, damage_.first + i, damage_.value);
    }
    return stored;
  }
  void release(const model::Parameter& parameter) override { weights_.release(parameter); }

 private:
  model::InitialWeights weights_;
  Damage damage_;
};

struct Case {
  const char* name;
  kernels::Device device;
  DType operand;
};

class BrokenNumbers : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    context_ = {.table = &kernels::select_cpu_table(), .pool = &pool_};
    if (GetParam().device == kernels::Device::cpu) return;
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    context_ = {.table = &kernels::cuda_table(),
                .pool = &pool_,
                .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  }
  void TearDown() override {
    if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
  }

  static model::ModelConfig config() {
    model::ModelConfig config{.vocab_size = kVocabulary,
                              .hidden_size = 256,
                              .num_hidden_layers = 4,
                              .num_attention_heads = 4,
                              .num_key_value_heads = 4,
                              .head_dim = 64,
                              .intermediate_size = 520,
                              .n_routed_experts = 16,
                              .n_shared_experts = 2,
                              .num_experts_per_tok = 3,
                              .moe_intermediate_size = 40,
                              .first_k_dense_replace = 1};
    config.initializer_range = 0.05;
    config.torch_dtype = GetParam().operand;
    return config;
  }
  std::unique_ptr<model::Model> make(const model::ModelConfig& config, const Damage& damage,
                                     moe::Passes passes = moe::Passes::forward) const {
    config.check("test");
    DamagedWeights weights(config, damage);
    return model::make_model(context_, config, weights,
                             {.operand = config.torch_dtype, .context = 600, .passes = passes});
  }
  static Damage bad_embedding(double value = kNan) {
    return {.tensor = "model.embed_tokens.weight", .first = kBadId * 256 + 7, .value = value};
  }
  static Tokens tokens(std::size_t count, uint64_t seed = 1) {
    const Rng rng{seed, RngPurpose::test};
    Tokens tokens(count);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(rng.below(i, kBadId));
    return tokens;
  }
  static Tokens with_bad(std::size_t count, std::size_t place, uint64_t seed = 1) {
    Tokens bad = tokens(count, seed);
    bad[place] = kBadId;
    return bad;
  }

  template <class F>
  static std::string error_of(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  std::string trace(const model::Model& model, const Tokens& tokens, int64_t chunk = 0) const {
    return error_of([&] {
      infer::trace_sequence(
          context_, model, tokens, {.chunk_tokens = chunk},
          {.logits = [](std::span<const float>) {},
           .routes =
               [](const infer::RoutesView& routes) {
                 EXPECT_TRUE(std::all_of(routes.index.begin(), routes.index.end(),
                                         [](int32_t e) { return 0 <= e && e < 16; }));
               }});
    });
  }

  ThreadPool pool_{2};
  kernels::Context context_;
};

TEST_P(BrokenNumbers, CentroidsAreToldByEveryReader) {
  const auto model = make(config(), {.tensor = "model.layers.1.mlp.gate.weight", .first = 700});
  const std::string expected = scores_of(1, 0);
  for (const std::size_t count : {1, 3, 70}) {
    const Tokens prompt = tokens(count);
    EXPECT_EQ(trace(*model, prompt), expected) << count;
    const std::vector<Tokens> prompts{prompt, prompt};
    EXPECT_EQ(error_of([&] {
                infer::answer_greedily(context_, *model, prompts, {.max_tokens = 2},
                                       [](int64_t, std::span<const int32_t>) {});
              }),
              expected)
        << count;
    EXPECT_EQ(error_of([&] {
                infer::Session session(context_, *model, {});
                session.assign(prompt);
                session.choose({.top_k = 1});
              }),
              expected)
        << count;
  }
  const Tokens text = tokens(50);
  const infer::ScoredDocument document{.tokens = text, .first_target = 40};
  EXPECT_EQ(error_of([&] {
              infer::score_documents(context_, *model, {&document, 1}, {},
                                     [](int64_t, const infer::TokenScores&) {});
            }),
            expected);
  const infer::DomainDocument counted{.tokens = text};
  EXPECT_EQ(error_of([&] {
              infer::count_routing(context_, *model, {&counted, 1}, {.num_domains = 1});
            }),
            expected);
}

TEST_P(BrokenNumbers, TokensAreCountedFromTheStartOfTheirSequence) {
  const auto model = make(config(), bad_embedding());
  EXPECT_EQ(trace(*model, tokens(90)), "no error");
  EXPECT_EQ(trace(*model, with_bad(90, 0)), scores_of(1, 0));
  // The first of its chunk: zero times a masked value is NaN too, so that tokens shortly before it
  // may break in the same pass.
  EXPECT_EQ(trace(*model, with_bad(90, 64), 16), scores_of(1, 64));
  const auto infinite = make(config(), bad_embedding(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(trace(*infinite, with_bad(90, 64), 16), scores_of(1, 64));
  const auto score = [&](const std::vector<Tokens>& texts, int64_t chunk) {
    std::vector<infer::ScoredDocument> documents;
    for (const Tokens& text : texts) documents.push_back({.tokens = text, .first_target = 1});
    return error_of([&] {
      infer::score_documents(context_, *model, documents, {.chunk_tokens = chunk},
                             [](int64_t, const infer::TokenScores&) {});
    });
  };
  EXPECT_EQ(score({tokens(20), with_bad(20, 0), tokens(20)}, 0), scores_of(1, 0));
  EXPECT_EQ(score({tokens(9), with_bad(50, 32)}, 16), scores_of(1, 32));
}

// What an expert breaks shows in the next router, or behind the last one in the logits.
TEST_P(BrokenNumbers, ExpertsAndActivations) {
  const Tokens prompt = tokens(64);
  const auto is_told = [&](const Damage& damage, const std::string& begin) {
    const std::string text = trace(*make(config(), damage), prompt);
    EXPECT_TRUE(text.starts_with(begin) && text.ends_with(kWhy)) << damage.tensor << ": " << text;
  };
  const std::string experts = ".mlp.experts.3.";
  is_told({.tensor = "model.layers.1" + experts + "down_proj.weight", .count = 256 * 40},
          "layer 2: the router's scores of token ");
  // Finite weights whose products are infinite.
  is_told(
      {.tensor = "model.layers.2" + experts + "up_proj.weight", .count = 256 * 40, .value = 3e38},
      "layer 3: the router's scores of token ");
  is_told({.tensor = "model.layers.3" + experts + "gate_proj.weight", .count = 256 * 40},
          "the logits of token ");
  is_told({.tensor = "lm_head.weight", .first = 256 * 17}, "the logits of token 0");
  is_told({.tensor = "lm_head.weight",
           .first = 256 * 17,
           .value = -std::numeric_limits<double>::infinity()},
          "the logits of token 0");
}

TEST_P(BrokenNumbers, ABiasOfTheChoiceIsPartOfTheScores) {
  model::ModelConfig v3 = config();
  v3.topk_method = model::TopkMethod::noaux_tc;
  v3.scoring_func = model::ScoringFunc::sigmoid;
  const Damage damage{.tensor = "model.layers.2.mlp.gate.e_score_correction_bias", .first = 5};
  for (const std::size_t count : {1, 4, 40}) {
    EXPECT_EQ(trace(*make(v3, damage), tokens(count)), scores_of(2, 0)) << count;
  }
}

// Logits behind the last router, where a token is scored or drawn.
TEST_P(BrokenNumbers, LogitsThatAreScoredOrDrawn) {
  for (const double value : {kNan, -std::numeric_limits<double>::infinity()}) {
    const auto model =
        make(config(), {.tensor = "lm_head.weight", .first = 256 * 17, .value = value});
    const Tokens text = tokens(50);
    const infer::ScoredDocument document{.tokens = text, .first_target = 40};
    const std::string scored = error_of([&] {
      infer::score_documents(context_, *model, {&document, 1}, {},
                             [](int64_t, const infer::TokenScores&) {});
    });
    EXPECT_TRUE(scored.starts_with("the log-probability of token 40 of input 0 is not finite"))
        << scored;
    infer::Session session(context_, *model, {});
    session.assign(text);
    EXPECT_EQ(session.choose({.top_k = 1}), -1);
    EXPECT_EQ(session.choose({.draw = 77}), -1);
  }
}

TEST_P(BrokenNumbers, ASessionKeepsWhatIsSound) {
  const auto model = make(config(), bad_embedding());
  const Tokens good = tokens(40);
  const auto logits_of = [&](infer::Session& session) {
    const std::span<const float> logits = session.logits();
    return std::vector<float>(logits.begin(), logits.end());
  };
  infer::Session fresh(context_, *model, {.chunk_tokens = 8});
  fresh.assign(good);
  const std::vector<float> expected = logits_of(fresh);

  // In a chunk, and one token at a time.
  infer::Session session(context_, *model, {.chunk_tokens = 8});
  EXPECT_EQ(error_of([&] {
              session.assign(with_bad(40, 8));
              session.choose({.top_k = 1});
            }),
            scores_of(1, 8));
  EXPECT_LE(session.tokens().size(), 8u);
  session.assign(std::span(good).first(30));
  (void)session.choose({.top_k = 1});
  for (std::size_t i = 30; i < 36; ++i) {
    session.append(good[i]);
    (void)session.choose({.draw = 5});
  }
  EXPECT_EQ(error_of([&] {
              session.append(kBadId);
              session.choose({.draw = 5});
            }),
            scores_of(1, 36));
  EXPECT_TRUE(session.logits().empty());
  EXPECT_EQ(session.tokens(), Tokens(good.begin(), good.begin() + 36));
  for (std::size_t i = 36; i < 40; ++i) session.append(good[i]);
  EXPECT_EQ(logits_of(session), expected);
}

// Whether it ended in its middle or was given up: the next one is not blamed.
TEST_P(BrokenNumbers, ARunThatDoesNotCountTellsNothing) {
  const auto model = make(config(), bad_embedding());
  attention::KvCache cache(context_, model->kv_layers(), 4);
  model::ForwardPass pass(context_, *model, cache, {.max_tokens = 8, .max_sequences = 1});
  attention::KvSequence sequence;
  const model::Segment segment{.sequence = &sequence, .num_tokens = 8};
  const auto run = [&](const Tokens& tokens, model::BlockObserver* observer) {
    pass.run({.tokens = tokens, .segments = {&segment, 1}, .observer = observer});
  };
  const auto run_out_of_memory = [](int64_t layer, const moe::LayerTape&,
                                    const tensor::TensorView&) {
    if (layer == 3) throw std::bad_alloc();
  };
  model::BlockObserver observer(run_out_of_memory);
  EXPECT_THROW(run(with_bad(8, 3), &observer), std::bad_alloc);
  run(tokens(8), nullptr);
  pass.read({}, nullptr);
  run(with_bad(8, 3), nullptr);
  pass.forget();
  cache.truncate(sequence, 8);
  run(tokens(8), nullptr);
  pass.read({}, nullptr);
  run(with_bad(8, 0), nullptr);
  EXPECT_EQ(error_of([&] { pass.read({}, nullptr); }), scores_of(1, 16));
}

TEST_P(BrokenNumbers, TrainingAndItsValidation) {
  for (const model::Recompute recompute : {model::Recompute::nothing, model::Recompute::blocks}) {
    const auto model = make(config(), bad_embedding(), moe::Passes::forward_and_backward);
    tensor::Arena arena("gradients", context_.table->allocator);
    const auto all = [](const std::string&) { return true; };
    const model::GradientBuffers gradients =
        model::allocate_gradients(context_, model->config, model->operand, all, arena);
    model::TrainingPass pass(context_, *model, gradients.views, {.z_alpha = 0.1},
                             {.max_tokens = 60, .max_rows = 2, .max_documents = 4}, recompute);
    const Tokens bad = with_bad(60, 30), targets = tokens(60, 2);
    const Tokens lengths{30, 30};
    model::MicroBatch batch{
        .tokens = bad, .targets = targets, .row_lengths = lengths, .document_lengths = lengths};
    const model::StepScale scale{.counted_targets = 60, .num_balance_groups = 2};
    EXPECT_EQ(error_of([&] { pass.run(batch, scale); }), scores_of(1, 30));
    EXPECT_EQ(error_of([&] { pass.evaluate(batch); }), scores_of(1, 30));
    const Tokens good = tokens(60);
    batch.tokens = good;
    EXPECT_TRUE(std::isfinite(pass.evaluate(batch).nats));
  }
  const auto model = make(config(), {.tensor = "lm_head.weight", .first = 256 * 17},
                          moe::Passes::forward_and_backward);
  model::TrainingPass pass(context_, *model, {}, {},
                           {.max_tokens = 30, .max_rows = 1, .max_documents = 1},
                           model::Recompute::nothing);
  const Tokens good = tokens(30), lengths{30};
  EXPECT_EQ(
      error_of([&] {
        pass.evaluate(
            {.tokens = good, .targets = good, .row_lengths = lengths, .document_lengths = lengths});
      }),
      std::string("the log-probability of token 0 is not finite") +
          std::string(kWhy).substr(std::string(" are not finite").size()));
}

// What a request was given, comparable bit by bit.
struct Answer {
  Tokens tokens, routes;
  std::vector<float> scores, gates;
  std::string end;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class Sink : public infer::RequestSink {
 public:
  void on_prompt_score(int64_t, const infer::TokenScore& score) override {
    answer_.scores.push_back(score.log_prob);
  }
  void on_routes(const infer::RouteRows& routes) override {
    answer_.routes.insert(answer_.routes.end(), routes.index.begin(), routes.index.end());
    answer_.gates.insert(answer_.gates.end(), routes.gate.begin(), routes.gate.end());
  }
  infer::Next on_token(int32_t token, const infer::TokenScore* score) override {
    answer_.tokens.push_back(token);
    if (score != nullptr) answer_.scores.push_back(score->log_prob);
    return infer::Next::more;
  }
  void on_finish(const infer::Finish&) override { end("finished"); }
  void on_error(ErrorKind kind, const std::string& message) override {
    EXPECT_EQ(kind, ErrorKind::internal) << message;
    end(message);
  }
  const Answer& wait() {
    done_.get_future().wait();
    return answer_;
  }

 private:
  void end(const std::string& how) {
    answer_.end = how;
    done_.set_value();
  }
  Answer answer_;
  std::promise<void> done_;
};

std::vector<Answer> answers(const kernels::Context& context, const model::Model& model,
                            std::vector<infer::EngineRequest> requests) {
  infer::Engine engine(context, model, {.max_batch = 40, .chunk_tokens = 128});
  std::vector<std::shared_ptr<Sink>> sinks;
  for (infer::EngineRequest& request : requests) {
    sinks.push_back(std::make_shared<Sink>());
    request.sink = sinks.back();
  }
  EXPECT_EQ(engine.submit(requests).admission, infer::Admission::accepted);
  std::vector<Answer> all;
  for (const auto& sink : sinks) all.push_back(sink->wait());
  EXPECT_TRUE(engine.is_alive());
  return all;
}

TEST_P(BrokenNumbers, ARequestFailsAlone) {
  const auto model = make(config(), bad_embedding());
  for (const std::size_t count : {4, 20, 36}) {  // kernels differ in how many rows they take
    std::vector<infer::EngineRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      infer::EngineRequest request{.prompt = tokens(5 + 23 * (i % 5), i), .max_tokens = 9};
      request.sampler.temperature = i % 2 == 0 ? 0 : 0.9;
      request.wants_routes = true;
      if (i % 4 == 3) {
        request.num_top_scores = 0;
        request.scores_prompt = true;
      }
      requests.push_back(request);
    }
    // In a prompt, twice; and as a token that was drawn.
    requests[1].prompt = with_bad(150, 140);
    requests[2].prompt = with_bad(3, 0);
    requests[3].sampler.bias = {{.token = kBadId, .bias = 1000}};
    const std::vector<Answer> together = answers(context_, *model, requests);
    EXPECT_TRUE(together[1].end.starts_with("layer 1: the router's scores of token "))
        << together[1].end;
    EXPECT_EQ(together[2].end, scores_of(1, 0));
    EXPECT_EQ(together[3].end, scores_of(1, static_cast<int64_t>(requests[3].prompt.size())));
    EXPECT_EQ(together[3].tokens, Tokens{kBadId});
    for (std::size_t i = 4; i < count; ++i) EXPECT_EQ(together[i].end, "finished");
    for (const std::size_t i : {0, 2, 3, 4, 7}) {
      if (i >= count) continue;
      EXPECT_TRUE(together[i] == answers(context_, *model, {requests[i]})[0]) << "request " << i;
    }
  }
}

TEST_P(BrokenNumbers, AHeadFailsWhoeverDraws) {
  const auto model = make(config(), {.tensor = "lm_head.weight", .first = 256 * 17});
  infer::EngineRequest drawing{.prompt = tokens(12), .max_tokens = 3};
  infer::EngineRequest routed{.prompt = tokens(12), .max_tokens = 0, .wants_routes = true};
  infer::EngineRequest stopping = drawing;
  stopping.min_tokens = 2;  // the broken logit is one that must not be chosen yet
  stopping.stop_ids = {17};
  const std::vector<Answer> all = answers(context_, *model, {drawing, routed, stopping});
  EXPECT_TRUE(all[0].end.starts_with("the logit of token 17 ")) << all[0].end;
  EXPECT_EQ(all[1].end, "finished");
  EXPECT_TRUE(all[2].end.starts_with("the logit of token 17 ")) << all[2].end;
  EXPECT_TRUE(all[2].tokens.empty());
}

// No router and no draw reads what comes behind the last layer.
TEST_P(BrokenNumbers, AnEmbeddingFails) {
  for (const double value : {kNan, std::numeric_limits<double>::infinity()}) {
    const auto model = make(config(), {.tensor = "model.norm.weight", .first = 17, .value = value});
    infer::EngineRequest mean{
        .prompt = tokens(12), .max_tokens = 0, .pooling = infer::Pooling::mean};
    infer::EngineRequest last = mean;
    last.pooling = infer::Pooling::last;
    const infer::EngineRequest routed{.prompt = tokens(12), .max_tokens = 0, .wants_routes = true};
    const std::vector<Answer> all = answers(context_, *model, {mean, last, routed});
    EXPECT_TRUE(all[0].end.starts_with("value 17 of the embedding is not finite")) << all[0].end;
    EXPECT_EQ(all[1].end, all[0].end);
    EXPECT_EQ(all[2].end, "finished");
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BrokenNumbers,
                         ::testing::Values(Case{"cpu_bf16", kernels::Device::cpu, DType::BF16},
                                           Case{"cpu_f32", kernels::Device::cpu, DType::F32},
                                           Case{"cuda_bf16", kernels::Device::cuda, DType::BF16},
                                           Case{"cuda_f32", kernels::Device::cuda, DType::F32}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

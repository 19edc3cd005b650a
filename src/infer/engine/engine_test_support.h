// What tests of the engine share: sinks that collect, models from goldens, requests of all kinds.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "infer/engine/engine.h"
#include "infer/load_model.h"
#include "kernels/table.h"

namespace dsmoe::infer {

// Everything a request gets, comparable bit by bit.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> scores, prompt_scores, gates;
  std::vector<int32_t> routes;
  std::string end;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class Collector : public RequestSink {
 public:
  explicit Collector(std::size_t stop_after = 1000000) : stop_after_(stop_after) {}
  void on_prompt_score(int64_t position, const TokenScore& score) override {
    EXPECT_EQ(position, static_cast<int64_t>(answer_.prompt_scores.size()) + 1);
    answer_.prompt_scores.push_back(score.log_prob);
  }
  void on_routes(const RouteRows& routes) override {
    EXPECT_EQ(routes.first_position, next_route_);
    next_route_ += routes.num_tokens;
    answer_.routes.insert(answer_.routes.end(), routes.index.begin(), routes.index.end());
    answer_.gates.insert(answer_.gates.end(), routes.gate.begin(), routes.gate.end());
  }
  Next on_token(int32_t token, const TokenScore* score) override {
    answer_.tokens.push_back(token);
    if (score != nullptr) {
      answer_.scores.push_back(score->log_prob);
      for (const auto& [id, log_prob] : score->top) answer_.scores.push_back(log_prob);
    }
    return answer_.tokens.size() >= stop_after_ ? Next::stop : Next::more;
  }
  void on_finish(const Finish& finish) override {
    answer_.end = name_of(finish.reason);
    reused = finish.reused_tokens;
    promise_.set_value();
  }
  void on_error(ErrorKind, const std::string& message) override {
    answer_.end = "error: " + message;
    promise_.set_value();
  }

  const Answer& wait() {
    if (future_.valid()) future_.get();
    return answer_;
  }
  std::future<void>& future() { return future_; }
  int64_t reused = 0;

 private:
  Answer answer_;
  int64_t next_route_ = 0;
  std::size_t stop_after_;
  std::promise<void> promise_;
  std::future<void> future_ = promise_.get_future();
};

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens" / name;
}

struct Loaded {
  explicit Loaded(const std::string& name, const kernels::KernelTable& table) : pool(1) {
    context = {.table = &table, .pool = &pool};
    model = load_model(context, golden(name), {});
  }
  ThreadPool pool;
  kernels::Context context;
  std::unique_ptr<model::Model> model;
};

inline std::vector<std::shared_ptr<Collector>> send(Engine& engine,
                                                    std::vector<EngineRequest> requests) {
  std::vector<std::shared_ptr<Collector>> sinks;
  for (EngineRequest& request : requests) {
    sinks.push_back(std::make_shared<Collector>());
    request.sink = sinks.back();
  }
  EXPECT_EQ(engine.submit(std::move(requests)).admission, Admission::accepted);
  return sinks;
}

inline Answer alone(const Loaded& loaded, EngineRequest request,
                    const EngineOptions& options = {}) {
  Engine engine(loaded.context, *loaded.model, options);
  std::vector<EngineRequest> one;
  one.push_back(std::move(request));
  return send(engine, std::move(one))[0]->wait();
}

inline std::shared_ptr<const std::vector<int32_t>> replay(std::vector<int32_t> experts) {
  return std::make_shared<const std::vector<int32_t>>(std::move(experts));
}

// Requests that mix everything that could leak from one to another. A few beginnings are shared.
inline std::vector<EngineRequest> random_requests(const model::Model& model, int count,
                                                  uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  const auto vocabulary = static_cast<int>(model.config.vocab_size);
  std::vector<std::vector<int32_t>> beginnings(3);
  for (auto& beginning : beginnings) {
    for (int i = 0; i < 140; ++i) beginning.push_back(below(vocabulary));
  }
  std::vector<EngineRequest> requests;
  for (int r = 0; r < count; ++r) {
    EngineRequest request;
    const auto& beginning = beginnings[static_cast<std::size_t>(below(3))];
    request.prompt.assign(beginning.begin(), beginning.begin() + below(140));
    for (int i = below(20); i >= 0; --i) request.prompt.push_back(below(vocabulary));
    request.sampler.temperature = below(3) * 0.6;
    if (below(4) == 0) request.sampler.repetition_penalty = 1.2;
    request.seed = random();
    request.choice = static_cast<uint32_t>(below(2));
    request.max_tokens = below(24);
    request.min_tokens = below(3);
    request.stop_ids = {below(vocabulary), below(vocabulary)};
    request.experts_per_token = below(2) * (1 + below(4));
    request.num_top_scores = below(4) - 1;
    request.scores_prompt = request.num_top_scores >= 0 && below(2) == 0;
    request.wants_routes = below(2) == 0;
    request.owner = static_cast<uint64_t>(below(2));
    if (below(4) == 0) {
      const int64_t top_k = request.experts_per_token > 0 ? request.experts_per_token
                                                          : model.config.num_experts_per_tok;
      std::vector<int32_t> replayed;
      for (int64_t row = (1 + below(static_cast<int>(request.prompt.size()) + 4)) *
                         model.config.num_moe_layers();
           row > 0; --row) {
        const int first = below(static_cast<int>(model.config.n_routed_experts));
        for (int64_t k = 0; k < top_k; ++k) {
          replayed.push_back(static_cast<int32_t>((first + k) % model.config.n_routed_experts));
        }
      }
      request.replayed = replay(std::move(replayed));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace dsmoe::infer

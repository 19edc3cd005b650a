// A server of a small random model with a tokenizer, in this process, on a port of its own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/context.h"
#include "model/language_model.h"
#include "serve/http_client.h"
#include "serve/service.h"

namespace dsmoe::testing {

// Vocabulary 300: bytes, two special tokens, some merges; 2 MoE layers of 8 experts.
struct SmallModelOptions {
  int64_t positions = 256;
};
std::unique_ptr<model::Model> small_model(const kernels::Context& context,
                                          const SmallModelOptions& options);
// Its tokenizer and DeepSeek's chat template.
serve::TextParts small_text();

struct SmallServerOptions {
  infer::EngineOptions engine = {};
  serve::ApiOptions api = {};
  serve::HttpOptions http = {};
  int threads = 1;
  std::string chat_template = {};        // empty: DeepSeek's
  std::function<void()> on_thread = {};  // first of what the thread of HTTP runs
};

class SmallServer {
 public:
  explicit SmallServer(SmallServerOptions options = {}, const SmallModelOptions& model = {});
  ~SmallServer();

  uint16_t port() const { return service_->port(); }
  serve::Service& service() { return *service_; }
  const model::Model& model() const { return *model_; }
  void stop();  // drains and joins

  Answer get(const std::string& target) { return Client(port()).get(target); }
  Answer post(const std::string& target, const Json& body) {
    return Client(port()).post(target, body);
  }
  Answer complete(const Json& body) { return post("/v1/completions", body); }
  Answer chat(const Json& body) { return post("/v1/chat/completions", body); }

 private:
  ThreadPool pool_;
  kernels::Context context_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<serve::Service> service_;
  std::thread thread_;
};

// The tests of a suite share one server.
class SmallServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { start(LogLevel::warning); }
  static void TearDownTestSuite() { server_.reset(); }
  static void start(LogLevel level, const SmallModelOptions& model = {}) {
    set_log_level(level);
    server_ = std::make_unique<SmallServer>(SmallServerOptions{}, model);
  }
  static SmallServer& server() { return *server_; }

 private:
  static inline std::unique_ptr<SmallServer> server_;
};

// A figure of /metrics once it is `expected`; what it is instead after a minute.
double wait_for_metric(SmallServer& server, const std::string& name, double expected);

}  // namespace dsmoe::testing

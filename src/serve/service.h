// A whole server: engine, API and HTTP, made and taken apart in the right order.
#pragma once

#include <memory>
#include <string>

#include "serve/http_server.h"

namespace dsmoe::serve {

struct ServiceOptions {
  ApiOptions api;
  HttpOptions http;
};

// Throws Error(usage) when strangers could reach a server without a key (--no-auth allows it).
enum class WithoutKeys { refused, allowed };
void check_exposure(const ServiceOptions& options, WithoutKeys without_keys);

class Service {
 public:
  // Listens; every request is told that the model is loading.
  explicit Service(ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  struct Opening {
    const kernels::Context& context;  // what it points to, and the model, must outlive the service
    const model::Model& model;
    TextParts text;
    std::string id;  // in the API
    infer::EngineOptions engine;
    infer::SamplerOptions sampling = {};  // of requests that do not say it
  };
  // From any thread, until there is a model: how far its training is.
  void show_training(const TrainingProgress& progress) { api_->show_training(progress); }
  // Once, from any thread: now there is a model.
  void open(Opening opening);
  void run() { http_->run(*api_); }         // until shut down
  void shut_down() { http_->shut_down(); }  // from any thread
  uint16_t port() const { return http_->port(); }
  Post post() { return http_->post(); }         // onto the thread that runs run()
  infer::Engine& engine() { return *engine_; }  // once open
  Worker& worker() { return *worker_; }         // for tests

 private:
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<infer::Engine> engine_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Api> api_;
};

}  // namespace dsmoe::serve

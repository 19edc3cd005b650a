// A whole server: engine, API and HTTP, made and taken apart in the right order.
#pragma once

#include <memory>
#include <string>

#include "serve/http_server.h"

namespace dsmoe::serve {

struct ServiceOptions {
  std::string model_id;
  infer::EngineOptions engine;
  ApiOptions api;
  HttpOptions http;
};

// Throws Error(usage) when strangers could reach a server without a key (--no-auth allows it).
enum class WithoutKeys { refused, allowed };
void check_exposure(const ServiceOptions& options, WithoutKeys without_keys);

class Service {
 public:
  // `model` and what `context` points to must outlive it.
  Service(const kernels::Context& context, const model::Model& model, TextParts text,
          ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void run() { http_->run(*api_); }         // until shut down
  void shut_down() { http_->shut_down(); }  // from any thread
  uint16_t port() const { return http_->port(); }
  infer::Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<infer::Engine> engine_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Api> api_;
};

}  // namespace dsmoe::serve

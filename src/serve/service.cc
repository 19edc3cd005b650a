// The order of life: the engine's thread and the worker post to HTTP, HTTP's connections use the
// API.
#include "serve/service.h"

#include "base/error.h"

namespace dsmoe::serve {

void check_exposure(const ServiceOptions& options, WithoutKeys without_keys) {
  if (!options.api.keys.empty() || without_keys == WithoutKeys::allowed ||
      is_loopback(options.http.host)) {
    return;
  }
  fail(ErrorKind::usage,
       "--host {} can be reached from other machines: give --api-key-file FILE (or --api-key KEY), "
       "or --no-auth if everyone may use it",
       options.http.host);
}

Service::Service(ServiceOptions options) : http_(std::make_unique<HttpServer>(options.http)) {
  worker_ = std::make_unique<Worker>(http_->post());
  options.api.host = options.http.host;
  api_ = std::make_unique<Api>(std::move(options.api), http_->post(), *worker_);
}

void Service::open(Opening opening) {
  engine_ = std::make_unique<infer::Engine>(opening.context, opening.model, opening.engine);
  model_ = std::make_unique<ServedModel>(opening.id, *engine_, std::move(opening.text),
                                         std::move(opening.sampling));
  api_->open(*model_);
}

Service::~Service() {
  worker_.reset();
  engine_.reset();
  http_.reset();
}

}  // namespace dsmoe::serve

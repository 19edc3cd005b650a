// Routing, keys, cross-origin rules, request ids and logs.
#include "serve/api.h"

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"
#include "serve/api_error.h"
#include "serve/constraint_field.h"
#include "serve/random_word.h"
#include "serve/web_assets.h"

namespace dsmoe::serve {
namespace {

// Fit to be logged and sent back.
bool is_plain_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::string random_id() {
  return fmt::format("{:08x}{:08x}{:08x}", random_word(), random_word(), random_word());
}

// Browsers' clients bring headers of their own (x-stainless-os, ...); what a preflight asks for is
// allowed if it is a list of names.
std::string allowed_headers(std::string_view asked) {
  const bool is_list =
      !asked.empty() && asked.size() <= 2048 && std::all_of(asked.begin(), asked.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '-' || c == '_' || c == ',' || c == ' ';
      });
  return is_list ? std::string(asked) : "authorization, content-type, x-request-id";
}

const WebAsset* find_asset(const std::string& path) {
  for (const WebAsset& asset : web_assets()) {
    if (asset.path == path || (path == "/index.html" && asset.path == "/")) return &asset;
  }
  return nullptr;
}

HttpResponse asset_response(const WebAsset& asset) {
  return {.content_type = std::string(asset.content_type),
          .body = std::string(asset.bytes),
          .headers = {{"Cache-Control", "no-cache"},
                      {"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                       "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"Referrer-Policy", "no-referrer"}}};
}

// A body up to this is read in a few milliseconds, whatever is in it.
constexpr std::size_t kShortBody = std::size_t{16} << 10;
// Of bodies that wait for the worker, which takes some 0.3 s for the worst of 8 MiB.
constexpr std::size_t kMaxPending = 256;
constexpr std::size_t kMaxPendingBytes = std::size_t{64} << 20;

// In the form of the API that was asked.
HttpResponse refused(const HttpRequest& request, const ApiError& error) {
  const Endpoint endpoint =
      request.path.starts_with("/v1/messages") ? Endpoint::messages : Endpoint::completions;
  HttpResponse response =
      json_response(error_json(endpoint, error, request.request_id), error.status());
  response.log_text = error.log_text();
  return response;
}

// The answer to what is being thrown.
HttpResponse refusal(const HttpRequest& request) {
  try {
    throw;
  } catch (const ApiError& e) {
    return refused(request, e);
  } catch (const Error& e) {
    const int status = status_of(e.kind());
    if (status == 500) log_warning("request {}: {}", request.request_id, e.what());
    return refused(request, {status, e.what()});
  } catch (const std::exception& e) {
    log_warning("request {}: {}", request.request_id, e.what());
    return refused(request, {500, "an internal error; the server's log has more"});
  }
}

ApiError draining_error() { return {503, "the server is shutting down", "", "draining"}; }

}  // namespace

// A request that the worker has, or has had.
struct Api::Pending {
  Pending(const Route& its_route, HttpRequest its_request, std::shared_ptr<Responder> its_responder)
      : route(its_route),
        request(std::move(its_request)),
        responder(std::move(its_responder)),
        num_bytes(request.body.size()) {}

  const Route& route;
  HttpRequest request;
  std::shared_ptr<Responder> responder;
  std::size_t num_bytes;
  Time start = std::chrono::steady_clock::now();
  std::atomic<bool> is_over{false};  // nobody waits for the answer any more
  std::optional<Prepared> prepared;  // nothing: for want of memory not even an error
};

Api::Api(ApiOptions options, Post post, Worker& worker)
    : options_(std::move(options)),
      keys_(options_.keys),
      host_rule_(options_.host, options_.cors_origin),
      post_(std::move(post)),
      worker_(worker) {}

Api::~Api() = default;

std::span<const Api::Route> Api::routes() {
  static const Route kRoutes[] = {
      {"POST", "/v1/chat/completions", nullptr, Needs::model, Takes::as_long_as_the_body,
       Endpoint::chat},
      {"POST", "/v1/completions", nullptr, Needs::model, Takes::as_long_as_the_body},
      {"POST", "/v1/responses", nullptr, Needs::model, Takes::as_long_as_the_body,
       Endpoint::responses},
      {"POST", "/v1/messages", nullptr, Needs::model, Takes::as_long_as_the_body,
       Endpoint::messages},
      {"POST", "/v1/embeddings", nullptr, Needs::model, Takes::as_long_as_the_body,
       Endpoint::embeddings},
      {"POST", "/v1/messages/count_tokens", &Api::count_tokens, Needs::model,
       Takes::as_long_as_the_body, Endpoint::messages},
      {"GET", "/v1/models", &Api::models},
      {"GET", "/v1/models/*", &Api::one_model},
      {"GET", "/health", &Api::health, Needs::nothing},
      {"GET", "/metrics", &Api::metrics_text},
      {"GET", "/version", &Api::version, Needs::nothing},
      {"POST", "/tokenize", &Api::tokenize, Needs::model, Takes::as_long_as_the_body},
      {"POST", "/apply-template", &Api::apply_template, Needs::model, Takes::as_long_as_the_body},
      {"POST", "/detokenize", &Api::detokenize, Needs::model, Takes::as_long_as_the_body},
      {"GET", "/tokenizer_info", &Api::tokenizer_info},
      {"GET", "/v1/experts", &Api::experts},
      {"DELETE", "/v1/experts", &Api::reset_experts},
      {"POST", "/v1/experts/reset", &Api::reset_experts},
      {"GET", "/v1/experts/tokens", &Api::expert_tokens, Needs::model, Takes::long_},
  };
  return kRoutes;
}

bool Api::is_known(std::string_view path) {
  return std::any_of(routes().begin(), routes().end(),
                     [&](const Route& route) { return fits(route, path); });
}

bool Api::fits(const Route& route, std::string_view path) {
  const std::string_view begin = route.path.substr(0, route.path.find('*'));
  return begin == route.path ? path == begin
                             : path.size() > begin.size() && path.starts_with(begin);
}

// The table's spelling: clients leave /v1 out or have it twice, and put a slash too many.
std::string Api::canonical_path(const std::string& path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  if (is_known(plain)) return plain;
  if (is_known("/v1" + plain)) return "/v1" + plain;
  constexpr std::string_view kVersion = "/v1";
  if (plain.starts_with("/v1/") && is_known(plain.substr(kVersion.size()))) {
    return plain.substr(kVersion.size());
  }
  return path;
}

std::string Api::list_of_routes() {
  std::string list;
  for (const Route& route : routes()) {
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", route.method, route.path);
  }
  return list;
}

Api::Found Api::find_route(const HttpRequest& request) {
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  Found found;
  for (const Route& route : routes()) {
    if (!fits(route, request.path)) continue;
    found.path = route.path;
    if (method == route.method) return {.route = &route, .path = route.path};
  }
  return found;
}

std::string Api::methods_of(std::string_view path) {
  std::string methods = "OPTIONS";
  for (const Route& route : routes()) {
    if (path != route.path) continue;
    methods += std::string(", ") + route.method;
    if (route.method == std::string_view("GET")) methods += ", HEAD";
  }
  return methods;
}

std::string Api::allowed_origin(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty()) return "";
  if (options_.cors_origin == "*" || options_.cors_origin == origin) return options_.cors_origin;
  // A page elsewhere must know a key; without keys only pages of this machine may ask.
  if (options_.cors_origin.empty() && !keys_.empty()) return "*";
  return options_.cors_origin.empty() && is_loopback_origin(origin) ? std::string(origin) : "";
}

// A browser lets any page send what a form could, and only keeps the answer from it: enough to make
// a server without keys compute. Own pages are those of the address the server was asked at.
bool Api::comes_from_a_stranger(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  return !origin.empty() && allowed_origin(request).empty() &&
         (host_of_origin(origin).empty() || host_of_origin(origin) != request.header("host"));
}

// Without keys. /health is for whatever watches the server, by whatever name, and tells nothing.
std::optional<HttpResponse> Api::refuse_stranger(const HttpRequest& head) const {
  if (!keys_.empty() || head.path == "/health") return std::nullopt;
  if (const std::string_view host = head.header("host"); !host_rule_.serves(host)) {
    return json_response(
        error_body(421,
                   fmt::format("a server without API keys does not answer to the name {}: use "
                               "localhost or 127.0.0.1, or start it with --api-key, or with "
                               "--cors-origin http://NAME where the name is yours",
                               in_quotes(host)),
                   "", "unknown_host"),
        421);
  }
  if (head.method == "OPTIONS" || !comes_from_a_stranger(head)) return std::nullopt;
  return json_response(
      error_body(403, "pages of this origin may not ask; the server's --cors-origin lets them"),
      403);
}

void Api::add_headers(const HttpRequest& request, HttpResponse& response) const {
  response.headers.emplace_back("x-request-id",
                                request.request_id.empty() ? random_id() : request.request_id);
  if (response.status == 429 || response.status == 503) {
    response.headers.emplace_back("Retry-After", "1");
  }
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  const std::string origin = allowed_origin(request);
  if (origin.empty()) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", origin);
  response.headers.emplace_back("Access-Control-Expose-Headers", "x-request-id, retry-after");
  response.headers.emplace_back("Vary", "Origin");
}

// OpenAI's clients send a bearer, Anthropic's a header of its own.
std::optional<uint64_t> Api::find_key(const HttpRequest& head) const {
  const std::string_view own = head.header("x-api-key");
  const std::string_view bearer = head.header("authorization");
  if (!bearer.empty() || own.empty()) return keys_.find_bearer(bearer);
  return keys_.find(own);
}

std::optional<HttpResponse> Api::answer_head(HttpRequest& head) {
  const std::string_view id = head.header("x-request-id");
  head.request_id = is_plain_id(id) ? std::string(id) : random_id();
  head.path = canonical_path(head.path);
  if (auto refused = refuse_stranger(head)) return refused;
  if (head.method == "OPTIONS") {
    HttpResponse response{.status = 204};
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                        {"Access-Control-Allow-Headers",
                         allowed_headers(head.header("access-control-request-headers"))},
                        {"Access-Control-Max-Age", "600"}};
    return response;
  }
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if (const WebAsset* asset = reads ? find_asset(head.path) : nullptr)
    return asset_response(*asset);
  if (!keys_.empty() && head.path != "/health") {
    const auto owner = find_key(head);
    if (!owner) {
      HttpResponse response = refused(
          head,
          {401, "a valid API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY", "",
           "invalid_api_key"});
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
    head.owner = *owner;
  }
  const Found found = find_route(head);
  if (found.route != nullptr) return std::nullopt;
  if (!found.path.empty()) {
    HttpResponse response = json_response(
        error_body(405, fmt::format("{} does not take {}", head.path, head.method)), 405);
    response.headers.emplace_back("Allow", methods_of(found.path));
    return response;
  }
  return json_response(
      error_body(404, fmt::format("there is no {} here; this server has {}",
                                  in_quotes(std::string_view(head.path).substr(0, 200)),
                                  list_of_routes())),
      404);
}

void Api::handle(HttpRequest request, const std::shared_ptr<Responder>& responder) {
  const auto start = std::chrono::steady_clock::now();
  Prepared prepared;
  try {
    const Route* route = find_route(request).route;
    if (route == nullptr) throw ApiError(404, "there is no such route");
    if (route->handler == nullptr && draining_) throw draining_error();
    const bool is_long = route->takes == Takes::long_ ||
                         (route->takes == Takes::as_long_as_the_body &&
                          (request.body.size() > kShortBody || may_have_constraint(request.body)));
    if (is_long) return prepare_later(*route, std::move(request), responder);
    prepared = prepare(*route, request);
  } catch (...) {
    prepared = refusal(request);
  }
  answer(request, responder, std::move(prepared), start);
}

Api::Prepared Api::prepare(const Route& route, HttpRequest& request) {
  try {
    if (route.needs == Needs::model) model();
    if (route.handler != nullptr) return (this->*route.handler)(request);
    PreparedCompletion prepared = prepare_completion(request.body, route.endpoint, model());
    prepared.share = request.drop_body();
    if (prepared.share && !prepared.share->hold(num_bytes(prepared))) {
      throw ApiError(503, "the prompts of others fill the memory for them; try again later", "",
                     "overloaded");
    }
    return prepared;
  } catch (...) {
    return refusal(request);
  }
}

void Api::prepare_later(const Route& route, HttpRequest&& request,
                        const std::shared_ptr<Responder>& responder) {
  if (pending_.size() >= kMaxPending || pending_bytes_ + request.body.size() > kMaxPendingBytes) {
    throw ApiError(503, "too many large requests wait here; try again later", "", "overloaded");
  }
  const auto pending = std::make_shared<Pending>(route, std::move(request), responder);
  const auto forget = [this, pending] {
    pending_bytes_ -= pending->num_bytes;
    pending_.erase(pending);
    metrics_.requests_preparing = static_cast<int64_t>(pending_.size());
  };
  pending_.insert(pending);
  metrics_.requests_preparing = static_cast<int64_t>(pending_.size());
  pending_bytes_ += pending->num_bytes;
  try {
    responder->on_gone([this, weak = std::weak_ptr(pending)] {
      const auto left = weak.lock();
      if (!left || left->is_over.exchange(true)) return;
      metrics_.clients_gone.fetch_add(1);
      count(left->request, 499);
    });
    worker_.add(
        [this, pending] {
          try {
            if (!pending->is_over) pending->prepared = prepare(pending->route, pending->request);
            pending->request.drop_body();
          } catch (...) {  // no memory for an error: finish() sees that there is nothing
            pending->prepared.reset();
          }
        },
        [this, pending, forget] {
          forget();
          finish(*pending);
        });
  } catch (...) {
    forget();
    request = std::move(pending->request);  // it is refused by its name
    throw;
  }
}

// The worker is done with it.
void Api::finish(Pending& pending) {
  const std::shared_ptr<Responder> responder = std::move(pending.responder);
  if (pending.is_over) return;
  if (!pending.prepared) pending.prepared = json_response(error_body(500, "out of memory"), 500);
  answer(pending.request, responder, std::move(*pending.prepared), pending.start);
}

void Api::answer(const HttpRequest& request, const std::shared_ptr<Responder>& responder,
                 Prepared prepared, Time start) {
  try {
    if (auto* completion = std::get_if<PreparedCompletion>(&prepared)) {
      return begin(request, responder, std::move(*completion), start);
    }
  } catch (...) {
    prepared = refusal(request);
  }
  auto& response = std::get<HttpResponse>(prepared);
  count(request, response.status, response.log_text);
  responder->respond(std::move(response));
}

void Api::begin(const HttpRequest& request, const std::shared_ptr<Responder>& responder,
                PreparedCompletion prepared, Time start) {
  const auto on_end = [this, id = request.request_id, path = request.path](
                          int status, const CompletionJob& ended) {
    std::erase_if(jobs_, [&](const auto& other) { return other.get() == &ended; });
    try {
      metrics_.count_request(path, status);
      log_info("id={} route={} status={} prompt_tokens={} answer_tokens={} seconds={:.3f}", id,
               path, status, ended.num_prompt_tokens(), ended.num_answer_tokens(), ended.seconds());
    } catch (const std::exception&) {
      // Without memory the line is missing.
    }
  };
  const auto job =
      std::make_shared<CompletionJob>(CompletionJob::Parts{.model = model(),
                                                           .metrics = metrics_,
                                                           .post = post_,
                                                           .worker = worker_,
                                                           .prepared = std::move(prepared),
                                                           .responder = responder,
                                                           .start = start,
                                                           .request_id = request.request_id,
                                                           .owner = request.owner,
                                                           .on_end = on_end});
  jobs_.insert(job);
  try {
    job->start();
  } catch (...) {
    jobs_.erase(job);
    throw;
  }
}

void Api::count(const HttpRequest& request, int status, std::string_view why) {
  const Found found = find_route(request);
  // Only known paths become labels: strangers must not make new ones.
  const std::string label = !found.path.empty()                   ? std::string(found.path)
                            : find_asset(request.path) != nullptr ? "page"
                                                                  : "other";
  metrics_.count_request(label, status);
  // Of completions those come here that were refused: who asks why finds them in the log.
  const bool is_completion = found.route != nullptr && found.route->handler == nullptr;
  const std::string line =
      fmt::format("id={} route={} status={}{}", request.request_id, label, status, why);
  is_completion ? log_info("{}", line) : log_debug("{}", line);
}

void Api::drain() { draining_ = true; }

void Api::hear_jobs() {
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto job = *next++;  // it may end
    job->hear();
  }
}

void Api::abort_all() {
  const ApiError error = draining_error();
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto job = *next++;  // it ends
    job->abort(error);
  }
  for (const auto& pending : pending_) {
    if (pending->is_over.exchange(true)) continue;
    count(pending->request, 503);
    pending->responder->respond(json_response(error_body(error), 503));
  }
}

const ServedModel& Api::model() const {
  const ServedModel* model = model_.load();
  if (model == nullptr) throw ApiError(503, "the model is still loading", "", "loading");
  return *model;
}

}  // namespace dsmoe::serve

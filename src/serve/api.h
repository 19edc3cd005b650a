// The HTTP API without HTTP: who may ask, what there is to ask, and the answers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/api_keys.h"
#include "serve/completion_job.h"
#include "serve/host_rule.h"
#include "serve/http_message.h"
#include "serve/metrics.h"
#include "serve/served_model.h"
#include "serve/training_progress.h"
#include "serve/worker.h"

namespace dsmoe::serve {

struct ApiOptions {
  std::vector<std::string> keys;   // none: everyone may ask
  std::string cors_origin;         // "*" or one origin; empty: loopback pages only
  std::string host = "127.0.0.1";  // where it listens
};

// Everything runs on the I/O thread but what says otherwise; what takes long runs on the worker.
// Until there is a model all but the page and /version is 503.
class Api {
 public:
  Api(ApiOptions options, Post post, Worker& worker);
  ~Api();

  // From any thread, while there is no model: /health says it.
  void show_training(const TrainingProgress& progress);
  // From any thread: from now on this model, which must outlive the Api's last request.
  void open(const ServedModel& model) { model_.store(&model); }

  // Once the head of a request is there, before its body: the answer, if it needs no body (wrong
  // key, a stranger's page, no such route, a preflight); also sets request_id and owner.
  std::optional<HttpResponse> answer_head(HttpRequest& head);
  // The whole request. Every request is answered, at once or later.
  void handle(HttpRequest request, const std::shared_ptr<Responder>& responder);
  // Headers of every answer.
  void add_headers(const HttpRequest& request, HttpResponse& response) const;
  // For answers that the HTTP side gives by itself: counted and logged like all others.
  void count(const HttpRequest& request, int status, std::string_view why = "");

  // From now on new completions get 503; running ones go on.
  void drain();
  bool is_draining() const { return draining_; }
  std::size_t num_jobs() const { return jobs_.size() + pending_.size(); }
  // Now and then: what the engine could not say of its own accord for want of memory.
  void hear_jobs();
  // Ends what still runs.
  void abort_all();

  Metrics& metrics() { return metrics_; }

 private:
  using Handler = HttpResponse (Api::*)(const HttpRequest&);
  enum class Needs { nothing, model };
  enum class Takes { no_time, as_long_as_the_body, long_ };
  struct Route {
    const char* method;
    std::string_view path;  // with a last * for any ending
    Handler handler;        // null: a completion
    Needs needs = Needs::model;
    Takes takes = Takes::no_time;  // all but these may touch what belongs to the I/O thread
    Endpoint endpoint = Endpoint::completions;  // of a completion; else whose errors it gives
  };
  static std::span<const Route> routes();
  static std::string methods_of(std::string_view path);
  struct Found {
    const Route* route = nullptr;
    std::string_view
        path;  // as in the table, also where the method is another; empty: no such path
  };
  static Found find_route(const HttpRequest& request);
  static bool fits(const Route& route, std::string_view path);
  static bool is_known(std::string_view path);
  static std::string canonical_path(const std::string& path);
  static std::string list_of_routes();

  // What can be made of a request without changing anything: on the worker's thread too.
  using Prepared = std::variant<HttpResponse, PreparedCompletion>;
  struct Pending;
  Prepared prepare(const Route& route, HttpRequest& request);
  void prepare_later(const Route& route, HttpRequest&& request,
                     const std::shared_ptr<Responder>& responder);
  void finish(Pending& pending);
  using Time = std::chrono::steady_clock::time_point;
  void answer(const HttpRequest& request, const std::shared_ptr<Responder>& responder,
              Prepared prepared, Time start);
  void begin(const HttpRequest& request, const std::shared_ptr<Responder>& responder,
             PreparedCompletion prepared, Time start);
  HttpResponse health(const HttpRequest&);
  HttpResponse models(const HttpRequest&);
  HttpResponse one_model(const HttpRequest&);
  HttpResponse version(const HttpRequest&);
  HttpResponse metrics_text(const HttpRequest&);
  HttpResponse tokenize(const HttpRequest&);
  HttpResponse count_tokens(const HttpRequest&);
  HttpResponse apply_template(const HttpRequest&);
  HttpResponse detokenize(const HttpRequest&);
  HttpResponse tokenizer_info(const HttpRequest&);
  HttpResponse experts(const HttpRequest&);
  HttpResponse reset_experts(const HttpRequest&);
  HttpResponse expert_tokens(const HttpRequest&);
  OrderedJson loading_json();
  OrderedJson model_json() const;
  const ServedModel& model() const;  // throws ApiError(503) while it loads
  std::string allowed_origin(const HttpRequest& request) const;
  bool comes_from_a_stranger(const HttpRequest& request) const;
  std::optional<uint64_t> find_key(const HttpRequest& head) const;
  std::optional<HttpResponse> refuse_stranger(const HttpRequest& head) const;

  std::atomic<const ServedModel*> model_{nullptr};
  std::mutex training_mutex_;
  std::optional<TrainingProgress> training_;
  LossCurve training_curve_;
  ApiOptions options_;
  ApiKeys keys_;
  HostRule host_rule_;
  Post post_;
  Worker& worker_;
  Metrics metrics_;
  std::set<std::shared_ptr<CompletionJob>> jobs_;
  std::set<std::shared_ptr<Pending>> pending_;  // with the worker
  std::size_t pending_bytes_ = 0;
  bool draining_ = false;
};

}  // namespace dsmoe::serve

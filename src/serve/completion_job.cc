// To the engine and back: submitting, collecting, sending, ending.
#include "serve/completion_job.h"

#include <algorithm>
#include <ctime>
#include <exception>

#include "base/log.h"
#include "base/utf8.h"
#include "infer/load_model.h"
#include "serve/api_error.h"
#include "serve/completion_choice.h"
#include "serve/random_word.h"
#include "serve/tool_shape.h"

namespace dsmoe::serve {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// 53 bits, so that JSON readers keep it exactly.
uint64_t random_seed() {
  return (static_cast<uint64_t>(random_word()) << 21) ^ (random_word() & 0x1fffffu);
}

void append(ChoiceDelta& to, ChoiceDelta from) {
  const auto join = [](auto& a, auto& b) {
    a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  };
  join(to.prompt_scores, from.prompt_scores);
  join(to.tokens, from.tokens);
  join(to.scores, from.scores);
  to.text += from.text;
  if (to.routes.num_tokens == 0) to.routes.first_position = from.routes.first_position;
  to.routes.num_tokens += from.routes.num_tokens;
  join(to.routes.index, from.routes.index);
  join(to.routes.gate, from.routes.gate);
  if (from.finish) to.finish = from.finish;
  if (!from.embedding.empty()) to.embedding = std::move(from.embedding);
  if (!from.stop_found.empty()) to.stop_found = std::move(from.stop_found);
}

// The arguments that are texts by the schema of each tool.
text::CallReader::StringArguments string_arguments(const ToolUse& tools) {
  text::CallReader::StringArguments strings;
  for (const Tool& tool : tools.callable) {
    if (!tool.parameters.is_object() || !tool.parameters.contains("properties")) continue;
    for (const auto& [name, schema] : tool.parameters["properties"].items()) {
      if (is_text_argument(schema)) strings[tool.name].insert(name);
    }
  }
  return strings;
}

std::unique_ptr<text::CallReader> call_reader(const CompletionRequest& request,
                                              const ServedModel& model) {
  const ToolUse& tools = request.chat.tools;
  if (tools.callable.empty()) return nullptr;
  return std::make_unique<text::CallReader>(*model.tool_form().syntax, string_arguments(tools));
}

// Chat completions have a field for thoughts.
std::unique_ptr<text::ReasoningReader> reasoning_reader(const CompletionRequest& request,
                                                        const ServedModel& model,
                                                        const EncodedPrompt& prompt) {
  const text::ReasoningMarkers* markers = model.reasoning();
  if (request.endpoint != Endpoint::chat || markers == nullptr) return nullptr;
  constexpr std::size_t kTail = 32;  // tokens: what a template writes behind the last message
  const std::span<const int32_t> tokens(prompt.tokens);
  const std::string tail =
      model.text().tokenizer->decode(tokens.last(std::min(kTail, tokens.size())));
  return std::make_unique<text::ReasoningReader>(*markers, text::opens_reasoning(*markers, tail));
}

}  // namespace

CompletionJob::CompletionJob(Parts parts) : parts_(std::move(parts)) {
  seed_ = request().seed ? *request().seed : random_seed();
  writer_ = make_writer({.model = parts_.model,
                         .request = request(),
                         .request_id = parts_.request_id,
                         .created = static_cast<int64_t>(std::time(nullptr)),
                         .seed = seed_,
                         .top_k = parts_.prepared.top_k});
}

CompletionJob::~CompletionJob() = default;

// What an answer carries beside its text is made in memory, all choices together.
void CompletionJob::check_extras(std::span<const infer::EngineRequest> requests) const {
  const int64_t routes = parts_.model.config().num_moe_layers() * parts_.prepared.top_k;
  int64_t total = 0;
  for (const infer::EngineRequest& request : requests) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t scored = request.max_tokens + (request.scores_prompt ? prompt : 0);
    total += scored * (request.num_top_scores + 1);
    if (request.wants_routes) total += (prompt + request.max_tokens) * routes;
  }
  if (total > kMaxExtras) {
    refuse(is_chat(request().endpoint) ? "messages" : "prompt",
           "log-probabilities and experts: {} may come together in this answer, at most {} are "
           "possible; ask for fewer tokens or choices at once",
           total, kMaxExtras);
  }
}

infer::EngineRequest CompletionJob::engine_request(const std::vector<int32_t>& prompt) const {
  const CompletionRequest& request = this->request();
  const model::ModelConfig& config = parts_.model.config();
  infer::EngineRequest engine{
      .prompt = prompt,
      .sampler = request.sampler,
      .seed = seed_,
      .max_tokens = answer_length(request, static_cast<int64_t>(prompt.size()), parts_.model),
      .min_tokens = request.min_tokens,
      .stop_ids = request.stop_token_ids,
      .constraint = parts_.prepared.constraint,
      .restriction = parts_.prepared.restriction,
      .experts_per_token = request.experts_per_token,
      .num_top_scores = std::max(request.num_logprobs, request.num_prompt_logprobs),
      .scores_prompt =
          request.num_prompt_logprobs >= 0 || (request.echo && request.num_logprobs >= 0),
      .wants_routes = request.return_routes,
      .pooling = request.pooling,
      .owner = parts_.owner};
  for (const int32_t id : request.stop_token_ids) {
    if (id >= config.vocab_size) {
      refuse("stop_token_ids", "stop_token_ids: {} is outside the vocabulary of {}", id,
             config.vocab_size);
    }
  }
  // lm-evaluation-harness reads scores that way, and drops the answer's: there has to be one.
  const bool only_scores = request.echo && request.num_logprobs >= 0 && engine.max_tokens == 1;
  if (!request.ignore_eos && !only_scores) {
    for (const int64_t id : config.eos_token_ids) {
      engine.stop_ids.push_back(static_cast<int32_t>(id));
    }
  }
  return engine;
}

void CompletionJob::make_choices() {
  std::vector<infer::EngineRequest> requests;
  for (const auto& prompt : parts_.prepared.prompts) {
    for (int64_t n = 0; n < request().num_choices; ++n) {
      auto choice = std::make_unique<Choice>(parts_.model, static_cast<int64_t>(choices_.size()),
                                             prompt, request().has_form);
      choice->calls = call_reader(request(), parts_.model);
      choice->reasoning = reasoning_reader(request(), parts_.model, *prompt);
      infer::EngineRequest engine = engine_request(prompt->tokens);
      engine.choice = static_cast<uint32_t>(n);
      engine.replayed = parts_.prepared.replay;
      choice->sink = std::make_shared<Sink>(shared_from_this());
      engine.sink = choice->sink;
      requests.push_back(std::move(engine));
      choices_.push_back(std::move(choice));
    }
    usage_prompt_ += static_cast<int64_t>(prompt->tokens.size());
  }
  check_extras(requests);
  num_open_ = choices_.size();
  infer::Engine::Submission submission = parts_.model.engine().submit(std::move(requests));
  if (submission.admission == infer::Admission::full) {
    throw ApiError(429, "the queue is full; try again later", "", "queue_full");
  }
  if (submission.admission == infer::Admission::dead) {
    throw ApiError(503, "the engine is not running", "", "engine_dead");
  }
  engine_ids_ = std::move(submission.ids);
}

void CompletionJob::submit() {
  try {
    make_choices();
  } catch (...) {
    choices_.clear();  // sinks and job hold each other
    throw;
  }
  parts_.prepared.prompts.clear();
  parts_.prepared.replay.reset();
  parts_.prepared.constraint.reset();
  parts_.prepared.restriction.reset();
}

void CompletionJob::start() {
  submit();
  parts_.metrics.requests_running.fetch_add(1);
  guarded([&] {
    parts_.responder->on_gone([weak = weak_from_this()] {
      if (const auto job = weak.lock()) job->abandon();
    });
    open_stream();
  });
}

void CompletionJob::open_stream() {
  if (!request().stream) return;
  parts_.responder->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                                  .headers = {{"Cache-Control", "no-cache"}}});
  is_streaming_ = true;
  write(writer_->begin(static_cast<int64_t>(choices_.size()), usage()));
}

void CompletionJob::collect() noexcept {
  guarded([this] { take_deltas(); });
}

void CompletionJob::hear() {
  if (is_unheard_.exchange(false)) collect();
}

// What runs by itself on the I/O thread: what goes wrong must end this request, not the server.
template <class F>
void CompletionJob::guarded(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    if (ended_) return;
    try {
      log_warning("request {}: {}", parts_.request_id, e.what());
      fail({500, "an internal error; the server's log has more"});
    } catch (const std::exception&) {
      if (!ended_) end(500);  // whoever waits for the answer sees the connection close
    }
  }
}

void CompletionJob::take_deltas() {
  if (is_rendering_ || ended_) return;  // the rest is taken once that is sent
  std::vector<ChoiceDelta> deltas;
  {
    const std::lock_guard lock(mutex_);
    is_awake_ = false;
    for (const auto& choice : choices_) deltas.push_back(choice->sink->take());
  }
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    if (deltas[i].error) {
      const int status = status_of(*deltas[i].error);
      const std::string& text = deltas[i].error_message;
      return fail(
          {status, text.empty() ? "out of memory" : text, "", status == 503 ? "engine_dead" : ""});
    }
    take(*choices_[i], std::move(deltas[i]));
  }
  go_on();
}

void CompletionJob::take(Choice& choice, ChoiceDelta delta) {
  choice.answer.insert(choice.answer.end(), delta.tokens.begin(), delta.tokens.end());
  usage_answer_ += static_cast<int64_t>(delta.tokens.size());
  if (delta.finish) {
    --num_open_;
    // A prompt counts once, however many answers it has.
    if (choice.index % request().num_choices == 0) usage_reused_ += delta.finish->reused_tokens;
  }
  append(choice.all, std::move(delta));
}

// A stream shows what has come, a plain answer waits for all of it.
void CompletionJob::go_on() {
  if (!request().stream && num_open_ > 0) return;
  constexpr std::size_t kAtOnce = std::size_t{1} << 13;  // some 5 ms
  if (render_cost() > kAtOnce) return render_later();
  send(render_pieces());
}

void CompletionJob::render_later() {
  struct Rendered {
    Pieces pieces;
    std::exception_ptr error;
  };
  const auto rendered = std::make_shared<Rendered>();
  const auto self = shared_from_this();
  parts_.worker.add(
      [self, rendered] {
        try {
          rendered->pieces = self->render_pieces();
        } catch (...) {
          rendered->error = std::current_exception();
        }
      },
      [self, rendered] {
        self->guarded([&] {
          self->is_rendering_ = false;
          if (self->ended_) return;
          if (rendered->error) std::rethrow_exception(rendered->error);
          self->send(std::move(rendered->pieces));
          self->take_deltas();
        });
      });
  is_rendering_ = true;
}

// Log-probabilities, experts, embeddings and tokens to be written now; of texts only long ones
// count.
std::size_t CompletionJob::render_cost() const {
  const int num_scores = std::max(request().num_logprobs, request().num_prompt_logprobs);
  const auto each = static_cast<std::size_t>(std::max(0, num_scores)) + 1;
  std::size_t cost = 0;
  for (const auto& choice : choices_) {
    const ChoiceDelta& delta = choice->all;
    cost += (delta.prompt_scores.size() + delta.tokens.size()) * each + delta.routes.index.size() +
            delta.embedding.size() + delta.text.size() / 32;
    const bool shows_prompt = request().echo || request().return_token_ids;
    if (shows_prompt && !choice->has_begun) cost += choice->prompt->tokens.size();
  }
  return cost;
}

CompletionJob::Pieces CompletionJob::render_pieces() {
  Pieces pieces;
  for (const auto& choice : choices_) {
    if (request().stream) {
      writer_->add(*choice, pieces);
    } else {
      pieces.push_back(writer_->choice(*choice));
    }
  }
  return pieces;
}

Usage CompletionJob::usage() const {
  return {.prompt = usage_prompt_, .answer = usage_answer_, .reused = usage_reused_};
}

void CompletionJob::write(Pieces pieces) {
  for (std::string& piece : pieces) parts_.responder->write(std::move(piece));
}

void CompletionJob::send(Pieces pieces) {
  if (!request().stream) {
    parts_.responder->respond({.body = writer_->whole(pieces, usage())});
    return end(200);
  }
  write(std::move(pieces));
  if (num_open_ > 0 || ended_) return;
  write(writer_->end(usage()));
  parts_.responder->end_stream();
  end(200);
}

void CompletionJob::fail(const ApiError& error) {
  if (is_streaming_) {
    write(writer_->fail(error));
    parts_.responder->end_stream();
  } else {
    parts_.responder->respond(
        json_response(error_json(request().endpoint, error, parts_.request_id), error.status()));
  }
  end(error.status());
}

void CompletionJob::abort(const ApiError& error) noexcept {
  guarded([&] {
    if (!ended_) fail(error);
  });
}

void CompletionJob::abandon() {
  if (ended_) return;
  parts_.metrics.clients_gone.fetch_add(1);
  end(499);
}

double CompletionJob::seconds() const { return seconds_since(parts_.start); }

void CompletionJob::end(int status) noexcept {
  ended_ = true;
  {
    const std::lock_guard lock(mutex_);  // what was answered and is not wanted any more counts too
    for (const auto& choice : choices_) {
      usage_answer_ += static_cast<int64_t>(choice->sink->take().tokens.size());
    }
  }
  try {
    if (num_open_ > 0) parts_.model.engine().cancel(engine_ids_);
  } catch (const std::exception&) {
    // The sinks end their sequences at the next token.
  }
  parts_.metrics.requests_running.fetch_sub(1);
  parts_.metrics.request.add(seconds_since(parts_.start));
  parts_.responder.reset();
  parts_.on_end(status, *this);
}

}  // namespace dsmoe::serve

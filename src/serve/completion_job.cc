// From a request to the engine and back: encoding, submitting, collecting, ending.
#include "serve/completion_job.h"

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "base/utf8.h"
#include "infer/load_model.h"
#include "serve/api_error.h"
#include "serve/completion_choice.h"
#include "serve/random_word.h"

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
}

}  // namespace

CompletionJob::CompletionJob(Parts parts) : parts_(std::move(parts)) {
  created_ = static_cast<int64_t>(std::time(nullptr));
  id_ = (is_chat() ? "chatcmpl-" : "cmpl-") + parts_.request_id;
  seed_ = parts_.request.seed ? *parts_.request.seed : random_seed();
  top_k_ = parts_.request.experts_per_token > 0 ? parts_.request.experts_per_token
                                                : parts_.model.config().num_experts_per_tok;
}

CompletionJob::~CompletionJob() = default;

CompletionJob::EncodedPrompt CompletionJob::encode_messages() const {
  const ServedModel& model = parts_.model;
  if (!model.text().chat_template) {
    throw ApiError(400,
                   "this model has no chat template; use /v1/completions, or start the server "
                   "with --chat-template FILE",
                   "messages");
  }
  std::string rendered;
  try {
    rendered = model.text().chat_template->render({.messages = parts_.request.messages,
                                                   .bos_token = model.text().special.bos,
                                                   .eos_token = model.text().special.eos});
  } catch (const Error& e) {
    throw ApiError(400, e.what(), "messages");
  }
  return {.tokens = model.encode(rendered, text::AddSpecial::no)};
}

CompletionJob::EncodedPrompt CompletionJob::encode(const Prompt& prompt) const {
  const ServedModel& model = parts_.model;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return {.tokens = model.encode(*text, text::AddSpecial::yes), .text = *text};
  }
  EncodedPrompt encoded{.tokens = std::get<std::vector<int32_t>>(prompt)};
  if (parts_.request.echo) {
    TextStream stream(model, text::SkipSpecial::yes);
    for (const int32_t id : encoded.tokens) encoded.text += stream.push(id);
    encoded.text += stream.finish();
  }
  return encoded;
}

// False: there are more, and this thread has others to look after.
bool CompletionJob::encode_some() {
  constexpr std::size_t kAtOnce = std::size_t{1} << 16;  // bytes of text
  if (is_chat()) {
    prompts_.push_back(encode_messages());
    return true;
  }
  for (std::size_t bytes = 0; prompts_.size() < parts_.request.prompts.size();) {
    if (bytes > kAtOnce) return false;
    prompts_.push_back(encode(parts_.request.prompts[prompts_.size()]));
    bytes += prompts_.back().text.size();
    // Refused before the next one is encoded.
    answer_length(static_cast<int64_t>(prompts_.back().tokens.size()));
  }
  return true;
}

// Before anything is made that grows with K.
void CompletionJob::check_top_k() const {
  const int64_t most = parts_.model.engine().options().max_top_k;
  if (parts_.request.experts_per_token > most) {
    refuse("num_experts_per_tok", "num_experts_per_tok: {} were asked for; this server takes {}",
           parts_.request.experts_per_token,
           most > 0 ? fmt::format("1 to {}", most) : "none: the model has no experts");
  }
}

// What an answer carries beside its text is made in memory, all choices together.
void CompletionJob::check_extras(std::span<const infer::EngineRequest> requests) const {
  const int64_t routes = parts_.model.config().num_moe_layers() * top_k_;
  int64_t total = 0;
  for (const infer::EngineRequest& request : requests) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t scored = request.max_tokens + (request.scores_prompt ? prompt : 0);
    total += scored * (request.num_top_scores + 1);
    if (request.wants_routes) total += (prompt + request.max_tokens) * routes;
  }
  if (total > kMaxExtras) {
    refuse(is_chat() ? "messages" : "prompt",
           "log-probabilities and experts: {} may come together in this answer, at most {} are "
           "possible; ask for fewer tokens or choices at once",
           total, kMaxExtras);
  }
}

// The replay as the engine wants it: rows of K slots, -1 where a token takes fewer.
std::vector<int32_t> CompletionJob::flat_replay() const {
  const Replay& replay = parts_.request.replay;
  const model::ModelConfig& config = parts_.model.config();
  std::vector<int32_t> flat;
  if (static_cast<int64_t>(replay.size()) > parts_.model.context()) {
    refuse("routed_experts", "routed_experts: {} tokens, the context holds {}", replay.size(),
           parts_.model.context());
  }
  for (const auto& layers : replay) {
    if (static_cast<int64_t>(layers.size()) != config.num_moe_layers()) {
      refuse("routed_experts", "routed_experts: {} layers for a token, the model has {} MoE layers",
             layers.size(), config.num_moe_layers());
    }
    for (std::vector<int32_t> experts : layers) {
      while (!experts.empty() && experts.back() == -1) experts.pop_back();
      std::vector<int32_t> sorted = experts;
      std::sort(sorted.begin(), sorted.end());
      const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
      if (experts.empty() || static_cast<int64_t>(experts.size()) > top_k_ || twice ||
          sorted.front() < 0 || sorted.back() >= config.n_routed_experts) {
        refuse("routed_experts",
               "routed_experts: expected 1 to {} different experts of 0 to {} for each token and "
               "layer",
               top_k_, config.n_routed_experts - 1);
      }
      experts.resize(static_cast<std::size_t>(top_k_), -1);
      flat.insert(flat.end(), experts.begin(), experts.end());
    }
  }
  return flat;
}

// Throws when prompt and answer do not fit; the last token of an answer needs no place.
int64_t CompletionJob::answer_length(int64_t num_prompt) const {
  const int64_t context = parts_.model.context();
  const int64_t wanted =
      parts_.request.max_tokens.value_or(std::max<int64_t>(1, context - num_prompt));
  if (num_prompt > context || wanted > context + 1 - num_prompt) {
    throw ApiError(
        400,
        fmt::format("this model's maximum context length is {} tokens; {} were asked for "
                    "({} in the prompt, {} in the answer)",
                    context, num_prompt + wanted, num_prompt, wanted),
        is_chat() ? "messages" : "prompt", "context_length_exceeded");
  }
  return wanted;
}

infer::EngineRequest CompletionJob::engine_request(const std::vector<int32_t>& prompt) const {
  const CompletionRequest& request = parts_.request;
  const model::ModelConfig& config = parts_.model.config();
  infer::EngineRequest engine{.prompt = prompt,
                              .sampler = request.sampler,
                              .seed = seed_,
                              .max_tokens = answer_length(static_cast<int64_t>(prompt.size())),
                              .min_tokens = request.min_tokens,
                              .stop_ids = request.stop_token_ids,
                              .experts_per_token = request.experts_per_token,
                              .num_top_scores = request.num_logprobs,
                              .scores_prompt = request.echo && request.num_logprobs >= 0,
                              .wants_routes = request.return_routes,
                              .owner = parts_.owner};
  for (const int32_t id : request.stop_token_ids) {
    if (id >= config.vocab_size) {
      refuse("stop_token_ids", "stop_token_ids: {} is outside the vocabulary of {}", id,
             config.vocab_size);
    }
  }
  // lm-evaluation-harness reads scores that way, and drops the answer's: there has to be one.
  const bool only_scores = engine.scores_prompt && engine.max_tokens == 1;
  if (!request.ignore_eos && !only_scores) {
    for (const int64_t id : config.eos_token_ids) {
      engine.stop_ids.push_back(static_cast<int32_t>(id));
    }
  }
  return engine;
}

void CompletionJob::make_choices() {
  const auto replay = std::make_shared<const std::vector<int32_t>>(flat_replay());
  std::vector<infer::EngineRequest> requests;
  for (const EncodedPrompt& prompt : prompts_) {
    for (int64_t n = 0; n < parts_.request.num_choices; ++n) {
      auto choice =
          std::make_unique<Choice>(parts_.model, static_cast<int64_t>(choices_.size()), prompt);
      infer::EngineRequest engine = engine_request(prompt.tokens);
      engine.choice = static_cast<uint32_t>(n);
      engine.replayed = replay;
      choice->sink = std::make_shared<Sink>(shared_from_this());
      engine.sink = choice->sink;
      requests.push_back(std::move(engine));
      choices_.push_back(std::move(choice));
    }
    usage_prompt_ += static_cast<int64_t>(prompt.tokens.size());
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
  prompts_.clear();
}

void CompletionJob::start() {
  check_top_k();
  const bool is_encoded = encode_some();
  if (is_encoded) submit();
  parts_.metrics.requests_running.fetch_add(1);
  guarded([&] {
    parts_.responder->on_gone([weak = weak_from_this()] {
      if (const auto job = weak.lock()) job->abandon();
    });
    is_encoded ? open_stream() : go_on_later();
  });
}

void CompletionJob::go_on_later() {
  parts_.post([job = shared_from_this()] { job->guarded([&] { job->go_on(); }); });
}

void CompletionJob::go_on() {
  if (ended_) return;
  try {
    if (!encode_some()) return go_on_later();
    submit();
  } catch (const ApiError& error) {
    return fail(error);
  }
  open_stream();
}

void CompletionJob::open_stream() {
  if (!parts_.request.stream) return;
  parts_.responder->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                                  .headers = {{"Cache-Control", "no-cache"}}});
  is_streaming_ = true;
  if (!is_chat()) return;
  for (const auto& choice : choices_) {
    send_chunk({{"index", choice->index},
                {"delta", {{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}});
  }
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
  std::vector<ChoiceDelta> deltas;
  {
    const std::lock_guard lock(mutex_);
    is_awake_ = false;
    for (const auto& choice : choices_) deltas.push_back(choice->sink->take());
  }
  for (std::size_t i = 0; i < deltas.size() && !ended_; ++i) {
    if (deltas[i].error) {
      const bool is_dead = *deltas[i].error == ErrorKind::resource;
      const std::string& text = deltas[i].error_message;
      return fail({is_dead ? 503 : 500, text.empty() ? "out of memory" : text, "",
                   is_dead ? "engine_dead" : ""});
    }
    take(*choices_[i], std::move(deltas[i]));
  }
  if (num_open_ == 0 && num_rendered_ == 0 && !ended_) finish_answer();
}

void CompletionJob::take(Choice& choice, ChoiceDelta delta) {
  choice.forwarded.insert(choice.forwarded.end(), delta.tokens.begin(), delta.tokens.end());
  usage_answer_ += static_cast<int64_t>(delta.tokens.size());
  if (delta.finish) {
    --num_open_;
    // A prompt counts once, however many answers it has.
    if (choice.index % parts_.request.num_choices == 0) {
      usage_reused_ += delta.finish->reused_tokens;
    }
  }
  const bool finished = delta.finish.has_value();
  const infer::Finish finish = delta.finish.value_or(infer::Finish{});
  append(choice.all, std::move(delta));
  if (!parts_.request.stream) return;
  // An echoed prompt is shown once its scores are complete: when a token comes, or the end.
  const bool shows_prompt = parts_.request.echo && !choice.has_begun;
  const bool is_ready = finished || !choice.all.tokens.empty() || !shows_prompt;
  if (is_ready && (shows_prompt || has_content(choice.all))) {
    send_chunk(render(choice, std::exchange(choice.all, {})));
  }
  if (!finished) return;
  Json last{
      {"index", choice.index}, {"logprobs", nullptr}, {"finish_reason", finish_reason(finish)}};
  if (is_chat()) {
    last["delta"] = Json::object();
  } else {
    last["text"] = "";
  }
  send_chunk(last);
}

void CompletionJob::finish_answer() {
  if (parts_.request.stream) {
    if (parts_.request.include_usage) {
      Json last = body(chunk_object(), Json::array());
      last["usage"] = usage();
      parts_.responder->write("data: " + to_text(last) + "\n\n");
    }
    parts_.responder->write("data: [DONE]\n\n");
    parts_.responder->end_stream();
    return end(200);
  }
  render_answer();
}

// Choice by choice, and where there is much to write the thread looks after others in between.
void CompletionJob::render_answer() {
  if (ended_) return;
  constexpr std::size_t kAtOnce = std::size_t{1} << 17;
  const std::size_t before = rendered_.size();
  while (num_rendered_ < choices_.size()) {
    if (rendered_.size() - before > kAtOnce) {
      return parts_.post(
          [job = shared_from_this()] { job->guarded([&] { job->render_answer(); }); });
    }
    Choice& choice = *choices_[num_rendered_];
    Json json = render(choice, choice.all);
    json["finish_reason"] = finish_reason(*choice.all.finish);
    if (num_rendered_++ > 0) rendered_ += ',';
    rendered_ += to_text(json);
    choice.all = {};
  }
  Json answer = body(is_chat() ? "chat.completion" : "text_completion", Json::array());
  answer["usage"] = usage();
  std::string text = to_text(answer);
  text.insert(text.find("[]") + 1, rendered_);  // "choices" is the first key
  parts_.responder->respond({.body = std::move(text)});
  end(200);
}

void CompletionJob::fail(const ApiError& error) {
  const Json body = error_body(error);
  if (is_streaming_) {
    parts_.responder->write("data: " + to_text(body) + "\n\ndata: [DONE]\n\n");
    parts_.responder->end_stream();
  } else {
    parts_.responder->respond(json_response(body, error.status()));
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

double CompletionJob::seconds() const { return seconds_since(start_); }

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
  parts_.metrics.request.add(seconds_since(start_));
  parts_.responder.reset();
  parts_.on_end(status, *this);
}

}  // namespace dsmoe::serve

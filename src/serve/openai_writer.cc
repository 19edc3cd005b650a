// The same function renders a chunk of a stream and a whole answer.
#include "serve/openai_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "serve/http_message.h"
#include "serve/openai_json.h"

namespace dsmoe::serve {

using text::CallEvent;

namespace {

void add_ending(const AnswerChoice& choice, OrderedJson& json) {
  json["finish_reason"] = choice.was_cut()         ? "length"
                          : choice.num_calls() > 0 ? "tool_calls"
                                                   : "stop";
  if (choice.was_closed()) json["closed_by_max_tokens"] = true;
}

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.answer},
          {"total_tokens", usage.prompt + usage.answer},
          {"prompt_tokens_details", {{"cached_tokens", usage.reused}}}};
}

// Around the choices. No string of a JSON text can hold unescaped quotes, so the first hit is it.
std::size_t inside_choices(const std::string& text) {
  constexpr std::string_view kEmpty = R"("choices":[])";
  return text.find(kEmpty) + kEmpty.size() - 1;
}

}  // namespace

OpenAiWriter::OpenAiWriter(AnswerFrame frame) : frame_(std::move(frame)) {
  id_ = (is_chat() ? "chatcmpl-" : "cmpl-") + frame_.request_id;
}

const char* OpenAiWriter::chunk_object() const {
  return is_chat() ? "chat.completion.chunk" : "text_completion";
}

OrderedJson OpenAiWriter::body(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", frame_.created},
          {"model", frame_.model.id()},
          {"choices", OrderedJson::array()},
          {"system_fingerprint", "dsmoe-" DSMOE_VERSION},
          {"seed", static_cast<int64_t>(frame_.seed)}};  // as it may be sent again
}

AnswerWriter::Pieces OpenAiWriter::begin(int64_t num_choices, const Usage&) {
  Pieces pieces;
  for (int64_t i = 0; is_chat() && i < num_choices; ++i) {
    pieces.push_back(chunk({{"index", i},
                            {"delta", {{"role", "assistant"}, {"content", ""}}},
                            {"logprobs", nullptr},
                            {"finish_reason", nullptr}}));
  }
  return pieces;
}

void OpenAiWriter::add(AnswerChoice& choice, Pieces& pieces) {
  const std::optional<infer::Finish> finish = choice.all.finish;
  // An echoed prompt is shown once its scores are complete: when a token comes, or the end.
  const bool shows_prompt = request().echo && !choice.has_begun;
  const bool is_ready = finish || !choice.all.tokens.empty() || !shows_prompt;
  if (is_ready &&
      (shows_prompt || has_content(choice.all) || (finish && (choice.calls || choice.reasoning)))) {
    add_chunks(choice, std::exchange(choice.all, {}), pieces);
  }
  if (!finish) return;
  choice.all = {.finish = finish};
  OrderedJson last{{"index", choice.index}};
  if (is_chat()) {
    last["delta"] = OrderedJson::object();
  } else {
    last["text"] = "";
  }
  last["logprobs"] = nullptr;
  add_ending(choice, last);
  choice.all = {};
  pieces.push_back(chunk(last));
}

// Usually one. Of an answer with calls one for each thing it says: the first has all the rest of
// the delta.
void OpenAiWriter::add_chunks(AnswerChoice& choice, const ChoiceDelta& delta, Pieces& pieces) {
  bool names_prompt = is_chat() && request().return_token_ids && !choice.has_begun;
  const auto add = [&](const OrderedJson& json) {
    pieces.push_back(std::exchange(names_prompt, false) ? chunk_with_prompt(json, choice)
                                                        : chunk(json));
  };
  if (!choice.calls) return add(render(choice, delta, choice.read(delta)));
  std::vector<text::CallEvent> events = choice.read(delta);
  std::erase_if(events, [](const auto& event) { return event.kind == CallEvent::Kind::end; });
  const bool has_more = !choice.thoughts.empty() || delta.routes.num_tokens > 0 ||
                        request().num_logprobs >= 0 || request().return_token_ids;
  if (events.empty() && !has_more) return;
  const std::span all(events);
  add(render(choice, delta, all.first(std::min<std::size_t>(1, all.size()))));
  for (std::size_t i = 1; i < all.size(); ++i) add(render(choice, {}, all.subspan(i, 1)));
}

AnswerWriter::Pieces OpenAiWriter::end(const Usage& usage) {
  Pieces pieces;
  if (request().include_usage) {
    OrderedJson last = body(chunk_object());
    last["usage"] = usage_json(usage);
    pieces.push_back("data: " + to_text(last) + "\n\n");
  }
  pieces.emplace_back("data: [DONE]\n\n");
  return pieces;
}

AnswerWriter::Pieces OpenAiWriter::fail(const ApiError& error) {
  return {"data: " + to_text(error_body(error)) + "\n\ndata: [DONE]\n\n"};
}

std::string OpenAiWriter::choice(AnswerChoice& choice) {
  OrderedJson json = render(choice, choice.all, choice.read(choice.all));
  add_ending(choice, json);
  if (request().num_prompt_logprobs >= 0) {
    (is_chat() ? beside_choices_ : json)["prompt_logprobs"] = render_prompt_logprobs(choice);
  }
  if (is_chat() && request().return_token_ids) {
    beside_choices_["prompt_token_ids"] = choice.prompt->tokens;
  }
  choice.all = {};
  return to_text(json);
}

std::string OpenAiWriter::whole(const Pieces& choices, const Usage& usage) {
  OrderedJson answer = body(is_chat() ? "chat.completion" : "text_completion");
  answer["usage"] = usage_json(usage);
  answer.update(beside_choices_);
  const std::string around = to_text(answer);
  const std::size_t inside = inside_choices(around);
  std::size_t size = around.size() + choices.size();
  for (const std::string& piece : choices) size += piece.size();
  std::string text;
  text.reserve(size);
  text = around.substr(0, inside);
  for (const std::string& piece : choices)
    text.append(text.size() > inside ? "," : "").append(piece);
  text += around.substr(inside);
  return text;
}

// All chunks of an answer say the same around their choice: that is rendered once.
std::string OpenAiWriter::chunk(const OrderedJson& choice) {
  if (chunk_end_.empty()) {
    OrderedJson around = body(chunk_object());
    if (request().include_usage) around["usage"] = nullptr;
    const std::string empty = to_text(around);
    const std::size_t inside = inside_choices(empty);
    chunk_begin_ = "data: " + empty.substr(0, inside);
    chunk_end_ = empty.substr(inside) + "\n\n";
  }
  return chunk_begin_ + to_text(choice) + chunk_end_;
}

// vLLM names the prompt of a chat beside the choices.
std::string OpenAiWriter::chunk_with_prompt(const OrderedJson& json,
                                            const AnswerChoice& choice) const {
  OrderedJson whole = body(chunk_object());
  whole["choices"].push_back(json);
  whole["prompt_token_ids"] = choice.prompt->tokens;
  if (request().include_usage) whole["usage"] = nullptr;
  return "data: " + to_text(whole) + "\n\n";
}

// Whether a delta is worth a chunk of its own.
bool OpenAiWriter::has_content(const ChoiceDelta& delta) const {
  const bool has_scores = request().num_logprobs >= 0 && !delta.scores.empty();
  return !delta.text.empty() || has_scores || delta.routes.num_tokens > 0 ||
         (request().return_token_ids && !delta.tokens.empty());
}

OrderedJson OpenAiWriter::render(AnswerChoice& choice, const ChoiceDelta& delta,
                                 std::span<const CallEvent> events) {
  OrderedJson json{{"index", choice.index}};
  if (!is_chat()) {
    const bool shows_prompt = request().echo && !choice.has_begun;
    json["text"] = shows_prompt ? choice.prompt->text + delta.text : delta.text;
  } else if (request().stream) {
    json["delta"] = render_delta(choice, events);
  } else {
    json["message"] = render_message(choice, events);
  }
  json["logprobs"] = request().num_logprobs >= 0 ? render_logprobs(choice, delta) : OrderedJson();
  json["finish_reason"] = nullptr;
  if (delta.routes.num_tokens > 0) render_routes(json, choice, delta);
  if (request().return_token_ids) {
    json["token_ids"] = delta.tokens;
    if (!is_chat() && !choice.has_begun) json["prompt_token_ids"] = choice.prompt->tokens;
  }
  choice.has_begun = true;
  return json;
}

std::string OpenAiWriter::call_id(const AnswerChoice& choice, int64_t call_idx) const {
  return fmt::format("call_{}_{}_{}", frame_.request_id, choice.index, call_idx);
}

// At most one event: what a chunk says.
OrderedJson OpenAiWriter::render_delta(AnswerChoice& choice, std::span<const CallEvent> events) {
  if (!choice.thoughts.empty()) {
    const std::string thoughts = std::exchange(choice.thoughts, {});
    OrderedJson delta = events.empty() ? OrderedJson::object() : render_delta(choice, events);
    delta["reasoning_content"] = thoughts;
    return delta;
  }
  if (events.empty()) return choice.calls ? OrderedJson::object() : OrderedJson{{"content", ""}};
  const CallEvent& event = events.front();
  if (event.kind == CallEvent::Kind::text) return {{"content", event.text}};
  OrderedJson call;
  if (event.kind == CallEvent::Kind::begin) {
    const int64_t call_idx = choice.calls_written++;
    call = {{"index", call_idx},
            {"id", call_id(choice, call_idx)},
            {"type", "function"},
            {"function", {{"name", event.text}, {"arguments", ""}}}};
  } else {
    call = {{"index", choice.calls_written - 1}, {"function", {{"arguments", event.text}}}};
  }
  return {{"tool_calls", OrderedJson::array({std::move(call)})}};
}

OrderedJson OpenAiWriter::render_message(AnswerChoice& choice, std::span<const CallEvent> events) {
  std::string text;
  OrderedJson calls = OrderedJson::array();
  for (const CallEvent& event : events) {
    if (event.kind == CallEvent::Kind::text) {
      text += event.text;
    } else if (event.kind == CallEvent::Kind::begin) {
      calls.push_back({{"id", call_id(choice, choice.calls_written++)},
                       {"type", "function"},
                       {"function", {{"name", event.text}, {"arguments", ""}}}});
    } else if (event.kind == CallEvent::Kind::arguments) {
      calls.back()["function"]["arguments"].get_ref<std::string&>() += event.text;
    }
  }
  OrderedJson message{{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  if (!choice.thoughts.empty()) {
    message["reasoning_content"] = std::exchange(choice.thoughts, {});
  }
  if (calls.empty()) return message;
  if (text.empty()) message["content"] = nullptr;
  message["tool_calls"] = std::move(calls);
  return message;
}

OrderedJson OpenAiWriter::render_logprobs(AnswerChoice& choice, const ChoiceDelta& delta) const {
  std::vector<ScoredToken> tokens;
  const auto add = [&](int32_t token, const infer::TokenScore* score) {
    tokens.push_back({.token = token, .score = score, .text_offset = choice.offset});
    choice.offset += count_characters(choice.offset_text.push(token));
  };
  if (request().echo && !choice.has_begun) {
    const std::vector<int32_t>& prompt = choice.prompt->tokens;
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      add(prompt[i], i == 0 ? nullptr : &delta.prompt_scores.at(i - 1));
    }
  }
  for (std::size_t i = 0; i < delta.tokens.size(); ++i) add(delta.tokens[i], &delta.scores.at(i));
  const LogprobForm form{.num_top = request().num_logprobs,
                         .tokens_as_ids = request().tokens_as_ids};
  return is_chat() ? chat_logprobs(frame_.model, tokens, form)
                   : completion_logprobs(frame_.model, tokens, form);
}

OrderedJson OpenAiWriter::render_prompt_logprobs(const AnswerChoice& choice) const {
  std::vector<ScoredToken> tokens;
  for (const int32_t token : choice.prompt->tokens) {
    const std::size_t place = tokens.size();
    tokens.push_back(
        {.token = token, .score = place == 0 ? nullptr : &choice.all.prompt_scores.at(place - 1)});
  }
  return prompt_logprobs(frame_.model, tokens, {.num_top = request().num_prompt_logprobs});
}

void OpenAiWriter::render_routes(OrderedJson& json, AnswerChoice& choice,
                                 const ChoiceDelta& delta) const {
  const RouteRecord& routes = delta.routes;
  add_routes(json, routes,
             {.num_layers = frame_.model.config().num_moe_layers(), .top_k = frame_.top_k},
             request().return_gates ? WithGates::yes : WithGates::no);
  const std::vector<int32_t>& prompt = choice.prompt->tokens;
  OrderedJson tokens = OrderedJson::array(), texts = OrderedJson::array();
  for (int64_t p = routes.first_position; p < routes.first_position + routes.num_tokens; ++p) {
    const auto at = static_cast<std::size_t>(p);
    const int32_t token = at < prompt.size() ? prompt[at] : choice.answer.at(at - prompt.size());
    tokens.push_back(token);
    texts.push_back(choice.route_text.push(token));
  }
  json["routed_tokens"] = std::move(tokens);
  json["routed_text"] = std::move(texts);
  json["routed_prompt"] = prompt.size();
}

}  // namespace dsmoe::serve

// The JSON of answers: the same function renders a chunk of a stream and a whole answer.
#include <algorithm>
#include <utility>

#include "serve/answer_json.h"
#include "serve/completion_choice.h"

namespace dsmoe::serve {

const char* finish_reason(const infer::Finish& finish) {
  switch (finish.reason) {
    case infer::FinishReason::stop_token:
    case infer::FinishReason::stopped:
      return "stop";
    default:
      return "length";
  }
}

const char* CompletionJob::chunk_object() const {
  return is_chat() ? "chat.completion.chunk" : "text_completion";
}

Json CompletionJob::body(const char* object, Json choices) const {
  Json json{{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", parts_.model.id()},
            {"system_fingerprint", "dsmoe-" DSMOE_VERSION},
            {"choices", std::move(choices)},
            {"seed", static_cast<int64_t>(seed_)}};  // as it may be sent again
  if (request().stream && request().include_usage) json["usage"] = nullptr;
  return json;
}

Json CompletionJob::usage() const {
  return {{"prompt_tokens", usage_prompt_},
          {"completion_tokens", usage_answer_},
          {"total_tokens", usage_prompt_ + usage_answer_},
          {"prompt_tokens_details", {{"cached_tokens", usage_reused_}}}};
}

// Log-probabilities, experts and tokens to be rendered now; of texts only long ones count.
std::size_t CompletionJob::render_cost() const {
  const auto each = static_cast<std::size_t>(std::max(0, request().num_logprobs)) + 1;
  std::size_t cost = 0;
  for (const auto& choice : choices_) {
    const ChoiceDelta& delta = choice->all;
    cost += (delta.prompt_scores.size() + delta.tokens.size()) * each + delta.routes.index.size() +
            delta.text.size() / 32;
    const bool shows_prompt = request().echo || request().return_token_ids;
    if (shows_prompt && !choice->has_begun) cost += choice->prompt->tokens.size();
  }
  return cost;
}

CompletionJob::Pieces CompletionJob::render_pieces() {
  Pieces pieces;
  for (const auto& choice : choices_) {
    if (request().stream) {
      render_chunks(*choice, pieces);
      continue;
    }
    Json json = render(*choice, choice->all);
    json["finish_reason"] = finish_reason(*choice->all.finish);
    pieces.push_back(to_text(json));
    choice->all = {};
  }
  return pieces;
}

void CompletionJob::render_chunks(Choice& choice, Pieces& pieces) {
  const std::optional<infer::Finish> finish = choice.all.finish;
  // An echoed prompt is shown once its scores are complete: when a token comes, or the end.
  const bool shows_prompt = request().echo && !choice.has_begun;
  const bool is_ready = finish || !choice.all.tokens.empty() || !shows_prompt;
  if (is_ready && (shows_prompt || has_content(choice.all))) {
    pieces.push_back(chunk(render(choice, std::exchange(choice.all, {}))));
  }
  if (!finish) return;
  choice.all = {};
  Json last{
      {"index", choice.index}, {"logprobs", nullptr}, {"finish_reason", finish_reason(*finish)}};
  if (is_chat()) {
    last["delta"] = Json::object();
  } else {
    last["text"] = "";
  }
  pieces.push_back(chunk(last));
}

// All chunks of an answer say the same around their choice: that is rendered once.
std::string CompletionJob::chunk(const Json& choice) {
  if (chunk_end_.empty()) {
    const std::string empty = to_text(body(chunk_object(), Json::array()));
    const std::size_t inside = empty.find("[]") + 1;  // "choices" is the first key
    chunk_begin_ = "data: " + empty.substr(0, inside);
    chunk_end_ = empty.substr(inside) + "\n\n";
  }
  return chunk_begin_ + to_text(choice) + chunk_end_;
}

// Whether a delta is worth a chunk of its own.
bool CompletionJob::has_content(const ChoiceDelta& delta) const {
  return !delta.text.empty() || !delta.scores.empty() || delta.routes.num_tokens > 0 ||
         (request().return_token_ids && !delta.tokens.empty());
}

Json CompletionJob::render(Choice& choice, const ChoiceDelta& delta) const {
  Json json{{"index", choice.index}, {"finish_reason", nullptr}};
  render_text(json, choice, delta);
  json["logprobs"] = request().num_logprobs >= 0 ? render_logprobs(choice, delta) : Json();
  if (delta.routes.num_tokens > 0) render_routes(json, choice, delta);
  if (request().return_token_ids) {
    json["token_ids"] = delta.tokens;
    if (!choice.has_begun) json["prompt_token_ids"] = choice.prompt->tokens;
  }
  choice.has_begun = true;
  return json;
}

void CompletionJob::render_text(Json& json, const Choice& choice, const ChoiceDelta& delta) const {
  if (!is_chat()) {
    const bool shows_prompt = request().echo && !choice.has_begun;
    json["text"] = shows_prompt ? choice.prompt->text + delta.text : delta.text;
  } else if (request().stream) {
    json["delta"] = {{"content", delta.text}};
  } else {
    json["message"] = {{"role", "assistant"}, {"content", delta.text}};
  }
}

Json CompletionJob::render_logprobs(Choice& choice, const ChoiceDelta& delta) const {
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
  return is_chat() ? chat_logprobs(parts_.model, tokens)
                   : completion_logprobs(parts_.model, tokens);
}

void CompletionJob::render_routes(Json& json, Choice& choice, const ChoiceDelta& delta) const {
  const RouteRecord& routes = delta.routes;
  add_routes(json, routes,
             {.num_layers = parts_.model.config().num_moe_layers(), .top_k = parts_.prepared.top_k},
             request().return_gates ? WithGates::yes : WithGates::no);
  const std::vector<int32_t>& prompt = choice.prompt->tokens;
  Json tokens = Json::array(), texts = Json::array();
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

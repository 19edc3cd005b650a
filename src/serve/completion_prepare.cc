// Parsing, templates, encoding, replays.
#include "serve/completion_prepare.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/json_field.h"

namespace dsmoe::serve {
namespace {

const char* prompt_field(const CompletionRequest& request) {
  return request.endpoint == Endpoint::chat ? "messages" : "prompt";
}

EncodedPrompt encode_messages(const text::OrderedJson& messages, const ServedModel& model) {
  if (!model.text().chat_template) {
    throw ApiError(400,
                   "this model has no chat template; use /v1/completions, or start the server "
                   "with --chat-template FILE",
                   "messages");
  }
  std::string rendered;
  try {
    rendered = model.text().chat_template->render({.messages = messages,
                                                   .bos_token = model.text().special.bos,
                                                   .eos_token = model.text().special.eos});
  } catch (const Error& e) {
    throw ApiError(400, e.what(), "messages");
  }
  return {.tokens = model.encode(rendered, text::AddSpecial::no)};
}

EncodedPrompt encode(Prompt prompt, const CompletionRequest& request, const ServedModel& model) {
  if (auto* text = std::get_if<std::string>(&prompt)) {
    return {.tokens = model.encode(*text, text::AddSpecial::yes), .text = std::move(*text)};
  }
  EncodedPrompt encoded{.tokens = std::move(std::get<std::vector<int32_t>>(prompt))};
  // Refused before a text is made that may be a hundred times as long.
  answer_length(request, static_cast<int64_t>(encoded.tokens.size()), model);
  if (request.echo) {
    TextStream stream(model, text::SkipSpecial::yes);
    for (const int32_t id : encoded.tokens) encoded.text += stream.push(id);
    encoded.text += stream.finish();
  }
  return encoded;
}

// Before anything is made that grows with K.
void check_top_k(const CompletionRequest& request, const ServedModel& model) {
  const int64_t most = model.engine().options().max_top_k;
  if (request.experts_per_token > most) {
    refuse("num_experts_per_tok", "num_experts_per_tok: {} were asked for; this server takes {}",
           request.experts_per_token,
           most > 0 ? fmt::format("1 to {}", most) : "none: the model has no experts");
  }
}

const Json& replay_list(const Json& value) {
  if (!value.is_array()) {
    refuse("routed_experts",
           "routed_experts: expected lists of integers [tokens][MoE layers][experts], got {}",
           kind_of(value));
  }
  return value;
}

// One token's experts in one layer: a row of K slots.
void append_row(std::vector<int32_t>& flat, const Json& row, int64_t top_k, int64_t num_experts) {
  std::vector<int32_t> experts;
  for (const Json& expert : replay_list(row)) {
    experts.push_back(static_cast<int32_t>(as_integer(expert, "routed_experts", {-1, 1 << 16})));
  }
  while (!experts.empty() && experts.back() == -1) experts.pop_back();
  std::vector<int32_t> sorted = experts;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (experts.empty() || static_cast<int64_t>(experts.size()) > top_k || twice ||
      sorted.front() < 0 || sorted.back() >= num_experts) {
    refuse("routed_experts",
           "routed_experts: expected 1 to {} different experts of 0 to {} for each token and layer",
           top_k, num_experts - 1);
  }
  experts.resize(static_cast<std::size_t>(top_k), -1);
  flat.insert(flat.end(), experts.begin(), experts.end());
}

std::vector<int32_t> flat_replay(const Json& replay, int64_t top_k, const ServedModel& model) {
  const model::ModelConfig& config = model.config();
  std::vector<int32_t> flat;
  if (static_cast<int64_t>(replay.size()) > model.context()) {
    refuse("routed_experts", "routed_experts: {} tokens, the context holds {}", replay.size(),
           model.context());
  }
  for (const Json& layers : replay) {
    if (static_cast<int64_t>(replay_list(layers).size()) != config.num_moe_layers()) {
      refuse("routed_experts", "routed_experts: {} layers for a token, the model has {} MoE layers",
             layers.size(), config.num_moe_layers());
    }
    for (const Json& row : layers) append_row(flat, row, top_k, config.n_routed_experts);
  }
  return flat;
}

}  // namespace

int64_t answer_length(const CompletionRequest& request, int64_t num_prompt,
                      const ServedModel& model) {
  const int64_t context = model.context();
  const int64_t wanted = request.max_tokens.value_or(std::max<int64_t>(1, context - num_prompt));
  if (num_prompt > context || wanted > context + 1 - num_prompt) {
    throw ApiError(
        400,
        fmt::format("this model's maximum context length is {} tokens; {} were asked for "
                    "({} in the prompt, {} in the answer)",
                    context, num_prompt + wanted, num_prompt, wanted),
        prompt_field(request), "context_length_exceeded");
  }
  return wanted;
}

PreparedCompletion prepare_completion(std::string_view body, Endpoint endpoint,
                                      const ServedModel& model) {
  PreparedCompletion prepared{.request = parse_completion(body, endpoint)};
  CompletionRequest& request = prepared.request;
  model.check_name(request.model);
  check_top_k(request, model);
  prepared.top_k = request.experts_per_token > 0 ? request.experts_per_token
                                                 : model.config().num_experts_per_tok;
  const auto add = [&](EncodedPrompt encoded) {
    // Refused before the next one is encoded.
    answer_length(request, static_cast<int64_t>(encoded.tokens.size()), model);
    prepared.prompts.push_back(std::make_shared<const EncodedPrompt>(std::move(encoded)));
  };
  if (endpoint == Endpoint::chat) {
    add(encode_messages(std::exchange(request.messages, {}), model));
  } else {
    for (Prompt& prompt : std::exchange(request.prompts, {})) {
      add(encode(std::move(prompt), request, model));
    }
  }
  prepared.replay = std::make_shared<const std::vector<int32_t>>(
      flat_replay(std::exchange(request.replay, {}), prepared.top_k, model));
  return prepared;
}

}  // namespace dsmoe::serve

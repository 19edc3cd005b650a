// Parsing, templates, encoding, replays.
#include "serve/completion_prepare.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/chat_dialect.h"
#include "serve/chat_prompt.h"
#include "serve/json_field.h"
#include "serve/tool_shape.h"

namespace dsmoe::serve {
namespace {

const char* prompt_field(const CompletionRequest& request) {
  switch (request.endpoint) {
    case Endpoint::completions:
      return "prompt";
    case Endpoint::responses:
    case Endpoint::embeddings:
      return "input";
    default:
      return "messages";
  }
}

text::AddSpecial add_special(const CompletionRequest& request) {
  return request.add_special_tokens ? text::AddSpecial::yes : text::AddSpecial::no;
}

// The last tokens, where the request asks for that.
void truncate(EncodedPrompt& prompt, const CompletionRequest& request, const ServedModel& model) {
  if (!request.truncate_prompt) return;
  const int64_t room =
      std::clamp<int64_t>(model.context() + 1 - request.max_tokens.value_or(1), 1, model.context());
  const int64_t kept = *request.truncate_prompt < 0 ? room : *request.truncate_prompt;
  const int64_t too_many = static_cast<int64_t>(prompt.tokens.size()) - kept;
  if (too_many > 0) prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + too_many);
}

EncodedPrompt encode(Prompt prompt, const CompletionRequest& request, const ServedModel& model) {
  if (auto* text = std::get_if<std::string>(&prompt)) {
    EncodedPrompt encoded{.tokens =
                              model.encode(*text, add_special(request), prompt_field(request))};
    if (request.echo) encoded.text = std::move(*text);
    return encoded;
  }
  return {.tokens = std::move(std::get<std::vector<int32_t>>(prompt))};
}

std::string text_of(const std::vector<int32_t>& tokens, const ServedModel& model) {
  TextStream stream(model, text::SkipSpecial::yes);
  std::string text;
  for (const int32_t id : tokens) text += stream.push(id);
  return text + stream.finish();
}

CompletionRequest parse_any(std::string_view body, Endpoint endpoint, const ServedModel& model) {
  if (endpoint == Endpoint::completions || endpoint == Endpoint::chat) {
    return parse_completion(body, endpoint, model.sampling());
  }
  if (endpoint == Endpoint::embeddings) {
    CompletionRequest request = parse_embeddings(body);
    if (request.dimensions > model.config().hidden_size) {
      refuse("dimensions", "dimensions: {} were asked for, the model has {}", request.dimensions,
             model.config().hidden_size);
    }
    return request;
  }
  TranslatedChat chat = endpoint == Endpoint::responses
                            ? translate_responses(body)
                            : translate_messages(body, MessagesFor::an_answer);
  CompletionRequest request = parse_completion(chat.body, endpoint, model.sampling());
  request.repeated = std::move(chat.repeated);
  return request;
}

// Where tools may be called, their calls are held to a shape, and what else was asked for to its
// own.
void add_tool_constraint(CompletionRequest& request, const ServedModel& model) {
  const ToolUse& tools = request.chat.tools;
  if (tools.callable.empty()) return;
  const text::CallSyntax& syntax = *model.tool_form().syntax;
  std::string key = tool_answer_key(syntax, tools);
  std::optional<constrain::Shape> instead;
  if (request.constraint) {
    key += "\n= " + request.constraint->key;  // no tool has such a name
    instead = std::move(request.constraint->shape);
  }
  request.constraint =
      ConstraintSpec{tool_answer(syntax, tools, std::move(instead)), "tools", std::move(key)};
}

// Null where nothing is left out.
std::shared_ptr<const constrain::Restriction> restriction_of(CompletionRequest& request,
                                                             const ServedModel& model) {
  constrain::RestrictionRules rules = std::exchange(request.restriction, {});
  if (rules.only_tokens.empty() && rules.no_texts.empty()) return nullptr;
  const char* field = request.restriction_field;
  if (request.constraint) {
    refuse(field, "{}: not possible together with {}: what is left might end nowhere", field,
           request.constraint->field);
  }
  return model.restriction(std::move(rules));
}

// Before anything is made that grows with K.
void check_top_k(const CompletionRequest& request, const ServedModel& model) {
  const int64_t most = model.engine().limits().max_top_k;
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
  const infer::Limits& limits = model.engine().limits();
  std::vector<int32_t> flat;
  if (static_cast<int64_t>(replay.size()) > limits.context) {
    refuse("routed_experts", "routed_experts: {} tokens, the context holds {}", replay.size(),
           limits.context);
  }
  for (const Json& layers : replay) {
    if (static_cast<int64_t>(replay_list(layers).size()) != limits.num_moe_layers) {
      refuse("routed_experts", "routed_experts: {} layers for a token, the model has {} MoE layers",
             layers.size(), limits.num_moe_layers);
    }
    for (const Json& row : layers) append_row(flat, row, top_k, limits.num_experts);
  }
  return flat;
}

}  // namespace

int64_t answer_length(const CompletionRequest& request, int64_t num_prompt,
                      const ServedModel& model) {
  const infer::Limits& limits = model.engine().limits();
  const int64_t context = limits.context;
  const int64_t wanted = request.max_tokens.value_or(std::max<int64_t>(1, context - num_prompt));
  if (!limits.fits(num_prompt, wanted)) {
    throw ApiError(
        400,
        fmt::format("this model's maximum context length is {} tokens; {} were asked for "
                    "({} in the prompt, {} in the answer)",
                    context, num_prompt + wanted, num_prompt, wanted),
        prompt_field(request), "context_length_exceeded");
  }
  return wanted;
}

std::size_t num_bytes(const PreparedCompletion& prepared) {
  const auto answers = static_cast<std::size_t>(prepared.request.num_choices);
  std::size_t bytes = prepared.replay->size() * sizeof(int32_t);
  for (const auto& prompt : prepared.prompts) {
    bytes += prompt->text.size() + (1 + answers) * prompt->tokens.size() * sizeof(int32_t);
  }
  constexpr std::size_t kTree = 4;  // of a text, as a tree of values
  bytes += kTree * prepared.request.repeated.dump().size();
  for (const Tool& tool : prepared.request.chat.tools.callable) {
    bytes += kTree * tool.parameters.dump().size();
  }
  return bytes;
}

PreparedCompletion prepare_completion(std::string_view body, Endpoint endpoint,
                                      const ServedModel& model) {
  PreparedCompletion prepared{.request = parse_any(body, endpoint, model)};
  CompletionRequest& request = prepared.request;
  model.check_name(request.model);
  check_top_k(request, model);
  prepared.top_k = model.engine().limits().top_k_of(request.experts_per_token);
  const auto add = [&](EncodedPrompt encoded) {
    const bool has_text = !encoded.text.empty() && !request.truncate_prompt;
    truncate(encoded, request, model);
    // Refused before the next one is encoded, or a text is made that may be a hundred times as
    // long.
    answer_length(request, static_cast<int64_t>(encoded.tokens.size()), model);
    if (request.echo && !has_text) encoded.text = text_of(encoded.tokens, model);
    prepared.prompts.push_back(std::make_shared<const EncodedPrompt>(std::move(encoded)));
  };
  if (is_chat(endpoint)) {
    add({.tokens = model.encode(render_chat(request.chat, model), add_special(request))});
    // The tools that may be called are needed to read the answer.
    for (OrderedJson* read :
         {&request.chat.messages, &request.chat.tools.given, &request.chat.template_arguments}) {
      take_apart(*read);
      *read = nullptr;
    }
  } else {
    for (Prompt& prompt : std::exchange(request.prompts, {})) {
      add(encode(std::move(prompt), request, model));
    }
  }
  request.has_form = request.constraint || request.chat.tools.choice == ToolChoice::required;
  add_tool_constraint(request, model);
  prepared.restriction = restriction_of(request, model);
  if (request.constraint) {
    prepared.constraint = model.constraint(*std::exchange(request.constraint, {}));
  }
  prepared.replay = std::make_shared<const std::vector<int32_t>>(
      flat_replay(std::exchange(request.replay, {}), prepared.top_k, model));
  return prepared;
}

}  // namespace dsmoe::serve

// JSON -> CompletionRequest.
#include "serve/completion_request.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/memory_reserve.h"
#include "serve/api_error.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

constexpr int64_t kMaxToken = std::numeric_limits<int32_t>::max();
constexpr std::size_t kMaxBadWords = 128;
constexpr std::size_t kMaxBadWordBytes = 256;
constexpr int64_t kMaxCount = int64_t{1} << 24;  // above every context

std::vector<int32_t> token_list(const Json& list, const std::string& name) {
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& id : list) {
    tokens.push_back(static_cast<int32_t>(as_integer(id, name, {0, kMaxToken})));
  }
  return tokens;
}

void read_bias(const Json& body, CompletionRequest& request) {
  const Json* bias = find_field(body, "logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    refuse("logit_bias", "logit_bias: expected an object from token id to bias, got {}",
           kind_of(*bias));
  }
  if (bias->size() > 1024) {
    refuse("logit_bias", "logit_bias: {} entries, at most 1024 are possible", bias->size());
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t token = -1;
    const char* end = key.data() + key.size();
    const auto [rest, error] = std::from_chars(key.data(), end, token);
    if (error != std::errc() || rest != end || token < 0) {
      refuse("logit_bias", "logit_bias: expected token ids as keys");
    }
    const auto number = number_field({{"logit_bias", value}}, "logit_bias", {-100, 100});
    if (!number) refuse("logit_bias", "logit_bias: expected a number, got null");
    request.sampler.bias.push_back({.token = token, .bias = *number});
  }
}

void read_stops(const Json& body, CompletionRequest& request) {
  if (const Json* stop = find_field(body, "stop")) {
    if (!stop->is_string() && !stop->is_array()) {
      refuse("stop", "stop: expected a string or a list of strings, got {}", kind_of(*stop));
    }
    if (stop->size() > static_cast<std::size_t>(kMaxStops)) {
      refuse("stop", "stop: {} strings, at most {} are possible", stop->size(), kMaxStops);
    }
    // One empty string says that there is none.
    const bool is_none = stop->is_string() && stop->get_ref<const std::string&>().empty();
    for (const Json& item : is_none             ? Json::array()
                            : stop->is_string() ? Json::array({*stop})
                                                : *stop) {
      const auto text = string_field({{"stop", item}}, "stop", kMaxStopBytes);
      if (!text || text->empty()) refuse("stop", "stop: a stop string may not be empty");
      request.stops.push_back(*text);
    }
  }
  if (const Json* ids = find_field(body, "stop_token_ids")) {
    if (!ids->is_array() || ids->size() > 256) {
      refuse("stop_token_ids", "stop_token_ids: expected a list of at most 256 token ids");
    }
    request.stop_token_ids = token_list(*ids, "stop_token_ids");
  }
  request.include_stop = bool_field(body, "include_stop_str_in_output");
}

// Texts and tokens that the answer may not hold.
void read_restriction(const Json& body, CompletionRequest& request) {
  for (const char* name : {"bad_words", "banned_strings"}) {
    const Json* texts = find_field(body, name);
    if (texts == nullptr || texts->empty()) continue;
    request.restriction_field = name;
    if (!texts->is_array() || texts->size() > kMaxBadWords) {
      refuse(name, "{}: expected a list of at most {} texts", name, kMaxBadWords);
    }
    for (const Json& item : *texts) {
      auto text = string_field({{name, item}}, name, kMaxBadWordBytes);
      if (!text || text->empty()) refuse(name, "{}: a text may not be empty", name);
      request.restriction.no_texts.push_back(*std::move(text));
    }
  }
  const Json* ids = find_field(body, "allowed_token_ids");
  if (ids == nullptr || ids->empty()) return;
  request.restriction_field = "allowed_token_ids";
  if (!ids->is_array()) {
    refuse("allowed_token_ids", "allowed_token_ids: expected a list of token ids, got {}",
           kind_of(*ids));
  }
  request.restriction.only_tokens = token_list(*ids, "allowed_token_ids");
}

void read_sampling(const Json& body, CompletionRequest& request) {
  infer::SamplerOptions& sampler = request.sampler;
  const auto number = [&](const char* name, NumberRange range, double& target) {
    if (const auto value = number_field(body, name, range)) target = *value;
  };
  number("temperature", {0, 2}, sampler.temperature);
  number("top_p", {0, 1}, sampler.top_p);
  number("min_p", {0, 1}, sampler.min_p);
  number("presence_penalty", {-2, 2}, sampler.presence_penalty);
  number("frequency_penalty", {-2, 2}, sampler.frequency_penalty);
  number("repetition_penalty", {0.01, 100}, sampler.repetition_penalty);
  // -1 is another way to say all.
  if (const auto top_k = integer_field(body, "top_k", {-1, kMaxToken})) {
    sampler.top_k = std::max<int64_t>(0, *top_k);
  }
  read_bias(body, request);
  if (const auto seed = integer_field(
          body, "seed",
          {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()})) {
    request.seed = static_cast<uint64_t>(*seed);
  }
}

void read_lengths(const Json& body, CompletionRequest& request) {
  const bool chat = is_chat(request.endpoint);
  const IntegerRange range{chat ? 1 : 0, kMaxCount};
  request.max_tokens = integer_field(body, "max_completion_tokens", range);
  const auto older = integer_field(body, "max_tokens", range);
  if (!request.max_tokens) request.max_tokens = older;
  if (!request.max_tokens && !chat) request.max_tokens = 16;
  request.min_tokens = integer_field(body, "min_tokens", {0, kMaxCount}).value_or(0);
  request.ignore_eos = bool_field(body, "ignore_eos");
  request.num_choices = integer_field(body, "n", {1, kMaxChoices}).value_or(1);
}

void read_logprobs(const Json& body, CompletionRequest& request) {
  if (request.endpoint == Endpoint::completions) {
    request.num_logprobs =
        static_cast<int>(integer_field(body, "logprobs", {0, kMaxTopLogprobs}).value_or(-1));
    request.echo = bool_field(body, "echo");
    return;
  }
  const auto top = integer_field(body, "top_logprobs", {0, kMaxTopLogprobs});
  if (bool_field(body, "logprobs")) {
    request.num_logprobs = static_cast<int>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    refuse("top_logprobs", "top_logprobs: needs logprobs to be true");
  }
}

// As vLLM has them: scores of the prompt beside a plain answer.
void read_prompt_logprobs(const Json& body, CompletionRequest& request) {
  const Json* value = find_field(body, "prompt_logprobs");
  if (value == nullptr || *value == false) return;
  request.num_prompt_logprobs =
      static_cast<int>(as_integer(*value, "prompt_logprobs", {0, kMaxTopLogprobs}));
  if (bool_field(body, "stream")) {
    refuse("prompt_logprobs", "prompt_logprobs: not possible with stream true");
  }
}

// How a prompt becomes tokens, and tokens text.
void read_token_rules(const Json& body, CompletionRequest& request) {
  const auto flag = [&](const char* name, bool otherwise) {
    return find_field(body, name) == nullptr ? otherwise : bool_field(body, name);
  };
  // A template writes its own first token.
  request.add_special_tokens =
      flag("add_special_tokens", request.endpoint == Endpoint::completions);
  request.skip_special_tokens = flag("skip_special_tokens", true);
  request.tokens_as_ids = flag("return_tokens_as_token_ids", false);
  // -1: as many as the context holds.
  request.truncate_prompt = integer_field(body, "truncate_prompt_tokens", {-1, kMaxCount});
}

void read_stream(const Json& body, CompletionRequest& request) {
  request.stream = bool_field(body, "stream");
  const Json* options = find_field(body, "stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    refuse("stream_options", "stream_options: expected an object, got {}", kind_of(*options));
  }
  if (!request.stream) refuse("stream_options", "stream_options: only possible with stream true");
  request.include_usage = bool_field(*options, "include_usage");
}

void read_experts(Json& body, CompletionRequest& request) {
  request.experts_per_token = integer_field(body, "num_experts_per_tok", {1, 1 << 16}).value_or(0);
  request.return_gates = bool_field(body, "return_routed_gates");
  request.return_routes = bool_field(body, "return_routed_experts") || request.return_gates;
  request.return_token_ids = bool_field(body, "return_token_ids");
  const auto replay = body.find("routed_experts");
  if (replay == body.end() || replay->is_null()) return;
  if (!replay->is_array()) {
    refuse("routed_experts",
           "routed_experts: expected lists of integers [tokens][MoE layers][experts], got {}",
           kind_of(*replay));
  }
  request.replay = std::move(*replay);
}

// What would change the answer if it were dropped silently.
void refuse_unsupported_fields(const Json& body, Endpoint endpoint) {
  refuse_unsupported(body, unsupported_fields());
  refuse_unsupported(body, endpoint == Endpoint::completions ? unsupported_prompt_fields()
                                                             : unsupported_chat_fields());
  if (integer_field(body, "best_of", {1, kMaxChoices}).value_or(1) >
      integer_field(body, "n", {1, kMaxChoices}).value_or(1)) {
    refuse("best_of", "best_of: more than n is not supported");
  }
}

}  // namespace

void read_prompts(const Json& body, const char* field, CompletionRequest& request) {
  const Json* prompt = find_field(body, field);
  if (prompt == nullptr) refuse(field, "{}: expected a string or token ids, it is missing", field);
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) {
    refuse(field, "{}: expected a string, strings, token ids or lists of token ids, got {}", field,
           prompt->is_array() ? "an empty array" : kind_of(*prompt));
  }
  if (prompt->front().is_number()) {
    request.prompts.emplace_back(token_list(*prompt, field));
    return;
  }
  if (prompt->size() > static_cast<std::size_t>(kMaxChoices)) {
    refuse(field, "{}: {} prompts, at most {} are possible", field, prompt->size(), kMaxChoices);
  }
  const bool texts = prompt->front().is_string();
  for (const Json& item : *prompt) {
    if (texts != item.is_string() || (!texts && !item.is_array())) {
      refuse(field, "{}: expected only strings or only lists of token ids, got {}", field,
             kind_of(item));
    }
    if (texts) {
      request.prompts.emplace_back(item.get<std::string>());
    } else {
      request.prompts.emplace_back(token_list(item, field));
    }
  }
}

Json parse_body(std::string_view body) {
  try {
    const KeepReserve keep;
    JsonOwner json(parse_json(body, "request body", kBodyLimits));
    if ((*json).is_object()) return json.take();
    throw ApiError(400,
                   fmt::format("request body: expected a JSON object, got {}", kind_of(*json)));
  } catch (const Error& e) {
    throw ApiError(400, e.what()).quoting();
  }
}

CompletionRequest parse_completion(std::string_view text, Endpoint endpoint,
                                   const infer::SamplerOptions& defaults) {
  JsonOwner owner(parse_body(text));
  Json& body = *owner;
  CompletionRequest request{.endpoint = endpoint, .sampler = defaults};
  request.model = string_field(body, "model", 4096).value_or("");
  refuse_unsupported_fields(body, endpoint);
  if (is_chat(endpoint)) {
    request.chat = read_chat(body, text);
  } else {
    read_prompts(body, "prompt", request);
  }
  read_sampling(body, request);
  read_restriction(body, request);
  read_lengths(body, request);
  read_stops(body, request);
  read_logprobs(body, request);
  read_prompt_logprobs(body, request);
  read_token_rules(body, request);
  read_stream(body, request);
  request.constraint = read_constraint(body, text);
  read_experts(body, request);
  string_field(body, "user", 4096);
  const auto num_prompts = std::max<int64_t>(1, static_cast<int64_t>(request.prompts.size()));
  if (num_prompts * request.num_choices > kMaxChoices) {
    refuse("n", "n: {} prompts with n {} give {} answers, at most {} are possible", num_prompts,
           request.num_choices, num_prompts * request.num_choices, kMaxChoices);
  }
  if (!request.replay.empty() && num_prompts > 1) {
    refuse("routed_experts", "routed_experts: possible for one prompt only, got {}", num_prompts);
  }
  return request;
}

}  // namespace dsmoe::serve

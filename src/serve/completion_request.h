// The body of a completion request, read field by field: everything is checked that needs no model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "constrain/restriction.h"
#include "infer/engine/engine_request.h"
#include "infer/sequence/sampler.h"
#include "serve/chat_request.h"
#include "serve/constraint_field.h"

namespace dsmoe::serve {

enum class Endpoint { completions, chat, responses, messages, embeddings };
inline bool is_chat(Endpoint endpoint) {
  return endpoint != Endpoint::completions && endpoint != Endpoint::embeddings;
}

// A replay of 10,000 tokens through 30 layers of 6 experts has 2.1 million values.
inline constexpr JsonLimits kBodyLimits{
    .max_depth = 32, .max_values = std::size_t{1} << 21, .max_keys = std::size_t{1} << 17};
inline constexpr int64_t kMaxChoices = 128;  // prompts times n
// Log-probabilities and experts that an answer may carry, each some 150 bytes while it is made.
inline constexpr int64_t kMaxExtras = int64_t{1} << 23;
inline constexpr int64_t kMaxStops = 16;
inline constexpr std::size_t kMaxStopBytes = 1024;
inline constexpr int kMaxTopLogprobs = 20;

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  Endpoint endpoint = Endpoint::completions;
  std::string model;            // empty: the one that is served
  std::vector<Prompt> prompts;  // completions
  ChatRequest chat;             // chat
  infer::SamplerOptions sampler;
  std::optional<uint64_t> seed;
  int64_t num_choices = 1;  // n
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;
  std::vector<std::string> stops;
  bool include_stop = false;  // the answer ends with the stop string that ended it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  int num_logprobs = -1;         // -1: none wanted
  int num_prompt_logprobs = -1;  // the same
  bool tokens_as_ids = false;    // log-probabilities say "token_id:17" instead of a text
  bool add_special_tokens = true;
  bool skip_special_tokens = true;
  std::optional<int64_t> truncate_prompt;  // keep only so many of its last tokens; -1: what fits
  int64_t experts_per_token = 0;
  bool return_routes = false;
  bool return_gates = false;
  bool return_token_ids = false;
  std::optional<ConstraintSpec> constraint;       // what the answer must look like
  bool has_form = false;                          // it is one even where it calls no tool
  constrain::RestrictionRules restriction;        // what it may not hold
  const char* restriction_field = "";             // that said so
  infer::Pooling pooling = infer::Pooling::none;  // of embeddings
  int64_t dimensions = 0;                         // the first so many; 0: all
  bool base64 = false;
  OrderedJson repeated;  // fields that an answer of /v1/responses says again; null: none
  Json replay;           // a list, as sent: [tokens][MoE layers][experts]; null: none
};

// Throws ApiError(400) that names the field, what was expected and what came. Unknown fields are
// ignored, but for those of unsupported_field.h; null is the same as absent.
// `defaults`: for sampling fields that the body leaves out.
CompletionRequest parse_completion(std::string_view body, Endpoint endpoint,
                                   const infer::SamplerOptions& defaults);

CompletionRequest parse_embeddings(std::string_view body);
// A text, texts, ids or lists of ids.
void read_prompts(const Json& body, const char* field, CompletionRequest& request);

// parse_json() with an ApiError; the value must be an object.
Json parse_body(std::string_view body);

}  // namespace dsmoe::serve

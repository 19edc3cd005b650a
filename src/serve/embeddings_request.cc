// The body of /v1/embeddings: several texts, each a prompt without an answer.
#include "serve/api_error.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

std::span<const UnsupportedField> unsupported_embedding_fields() {
  static const UnsupportedField kFields[] = {{"messages", {}},
                                             {"normalize", {true}},
                                             {"embd_normalize", {2}},
                                             {"embedding_type", {}},
                                             {"embed_dtype", {"float32"}}};
  return kFields;
}

std::string word_field(const Json& body, const char* name,
                       std::initializer_list<const char*> words) {
  const auto word = string_field(body, name, 64);
  if (!word) return *words.begin();
  std::string list;
  for (const char* each : words) {
    if (*word == each) return *word;
    list += fmt::format("{}{}", list.empty() ? "" : " or ", each);
  }
  refuse(name, "{}: expected {}", name, list);
}

}  // namespace

CompletionRequest parse_embeddings(std::string_view text) {
  JsonOwner owner(parse_body(text));
  const Json& body = *owner;
  refuse_unsupported(body, unsupported_embedding_fields());
  CompletionRequest request{.endpoint = Endpoint::embeddings, .max_tokens = 0};
  request.model = string_field(body, "model", 4096).value_or("");
  read_prompts(body, "input", request);
  const bool is_mean = word_field(body, "pooling", {"mean", "last"}) == "mean";
  request.pooling = is_mean ? infer::Pooling::mean : infer::Pooling::last;
  request.base64 = word_field(body, "encoding_format", {"float", "base64"}) == "base64";
  request.dimensions = integer_field(body, "dimensions", {1, int64_t{1} << 24}).value_or(0);
  request.truncate_prompt = integer_field(body, "truncate_prompt_tokens", {-1, int64_t{1} << 24});
  const Json* adds = find_field(body, "add_special_tokens");
  request.add_special_tokens = adds == nullptr || bool_field(body, "add_special_tokens");
  string_field(body, "user", 4096);
  return request;
}

}  // namespace dsmoe::serve

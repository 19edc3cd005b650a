// The tables. What is in none of them stays free: metadata, store, priority, cache_prompt ...
#include "serve/unsupported_field.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/json_field.h"

namespace dsmoe::serve {
namespace {

// Members that are null are the same as absent.
bool is_same(const Json& value, const Json& harmless) {
  if (!value.is_object() || !harmless.is_object()) return value == harmless;
  std::size_t num_members = 0;
  for (const auto& [name, member] : value.items()) {
    if (member.is_null()) continue;
    const auto found = harmless.find(name);
    if (found == harmless.end() || *found != member) return false;
    ++num_members;
  }
  return num_members == harmless.size();
}

const Json kTextOnly = Json::array({"text"});
const Json kNone = Json::array();
const Json kNothing = Json::object();

}  // namespace

std::span<const UnsupportedField> unsupported_fields() {
  static const UnsupportedField kFields[] = {
      // OpenAI
      {"functions", {kNone}},
      {"function_call", {"none"}},
      {"suffix", {""}},
      {"modalities", {kTextOnly, kNone}},
      {"audio", {}},
      {"prediction", {}},
      {"web_search_options", {}},
      {"max_output_tokens", {}},
      // What the answer must look like
      {"guided_decoding_backend", {""}},
      {"guided_whitespace_pattern", {""}},
      {"structural_tag", {""}},
      {"logits_processors", {kNone}},
      {"custom_logit_processor", {}},
      // What is read
      {"chat_template", {}},
      {"documents", {kNone}},
      {"mm_processor_kwargs", {kNothing}},
      {"prompt_embeds", {}},
      {"image_data", {kNone}},
      {"images", {kNone}},
      {"system_prompt", {""}},
      {"negative_prompt", {""}},
      {"lora", {kNone}},
      // What is shown
      {"n_probs", {0}},
      {"spaces_between_special_tokens", {true}},
      {"detokenize", {true}},
      {"response_fields", {kNone}},
      // How long it is
      {"max_new_tokens", {}},
      {"max_length", {}},
      {"n_predict", {}},
      {"min_new_tokens", {0}},
      {"min_length", {0}},
      {"t_max_predict_ms", {0}},
      {"n_keep", {0}},
      {"n_indent", {0}},
      {"stop_sequences", {kNone}},
      // How it is chosen
      {"use_beam_search", {false}},
      {"num_beams", {1}},
      {"length_penalty", {1}},
      {"early_stopping", {false}},
      {"do_sample", {true}},
      {"typical_p", {1}},
      {"top_a", {0}},
      {"tfs_z", {1}},
      {"top_n_sigma", {-1, 0}},
      {"repeat_penalty", {1}},
      {"no_repeat_ngram_size", {0}},
      {"mirostat", {0}},
      {"mirostat_mode", {0}},
      {"dynatemp_range", {0}},
      {"dry_multiplier", {0}},
      {"xtc_probability", {0}},
      {"samplers", {kNone}},
      {"guidance_scale", {1}},
  };
  return kFields;
}

std::span<const UnsupportedField> unsupported_chat_fields() {
  static const UnsupportedField kFields[] = {{"echo", {false}}};
  return kFields;
}

std::span<const UnsupportedField> unsupported_prompt_fields() {
  static const UnsupportedField kFields[] = {{"tools", {kNone}},
                                             {"tool_choice", {"none"}},
                                             {"continue_final_message", {false}},
                                             {"add_generation_prompt", {true}},
                                             {"chat_template_kwargs", {kNothing}}};
  return kFields;
}

std::span<const UnsupportedField> unsupported_message_fields() {
  static const UnsupportedField kFields[] = {
      {"function_call", {}}, {"audio", {}}, {"images", {kNone}}, {"prefix", {false}}};
  return kFields;
}

std::span<const UnsupportedField> unsupported_tokenize_fields() {
  static const UnsupportedField kFields[] = {{"parse_special", {true}}};
  return kFields;
}

void refuse_unsupported_in_dialect(const Json& object,
                                   std::initializer_list<std::string_view> own) {
  static const UnsupportedField kChatAlone[] = {{"n", {1}},
                                                {"logprobs", {false}},
                                                {"top_logprobs", {0}},
                                                {"prompt_logprobs", {}},
                                                {"echo", {false}},
                                                {"return_token_ids", {false}},
                                                {"return_routed_experts", {false}},
                                                {"return_routed_gates", {false}},
                                                {"routed_experts", {kNone}}};
  refuse_unsupported(object, kChatAlone);
  for (const UnsupportedField& field : unsupported_fields()) {
    const bool is_own = std::find(own.begin(), own.end(), field.name) != own.end();
    if (!is_own) refuse_unsupported(object, std::span(&field, 1));
  }
}

void refuse_unsupported(const Json& object, std::span<const UnsupportedField> fields,
                        const std::string& prefix) {
  for (const UnsupportedField& field : fields) {
    const Json* value = find_field(object, field.name);
    if (value == nullptr) continue;
    std::string possible;
    bool is_harmless = false;
    for (const Json& harmless : field.harmless) {
      is_harmless = is_harmless || is_same(*value, harmless);
      possible += " or " + harmless.dump();
    }
    if (is_harmless) continue;
    const std::string name = prefix + field.name;
    refuse(name, "{}: not supported here; leave it out, or send null{}", name, possible);
  }
}

}  // namespace dsmoe::serve

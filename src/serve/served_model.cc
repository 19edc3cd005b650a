// Tokens and text of the model that is served.
#include "serve/served_model.h"

#include <ctime>
#include <utility>

#include "base/mapped_file.h"
#include "base/utf8.h"
#include "serve/api_error.h"
#include "serve/constraint_field.h"
#include "text/text_files.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

}  // namespace

TextParts load_text_parts(const std::filesystem::path& folder,
                          const std::filesystem::path& chat_template) {
  TextParts parts;
  if (text::has_tokenizer(folder)) {
    parts.tokenizer = text::Tokenizer::from_file(folder.string());
  }
  if (chat_template.empty()) {
    parts.chat_template = text::load_chat_template(folder);
  } else {
    parts.chat_template = text::ChatTemplate::parse(
        read_small_file(chat_template, kMaxTemplateBytes), chat_template.string());
  }
  // Its errors are told to clients, who need not know where it lies.
  if (parts.chat_template) {
    parts.chat_template =
        text::ChatTemplate::parse(parts.chat_template->source(), "the chat template");
  }
  parts.special = text::load_special_tokens(folder);
  return parts;
}

ServedModel::ServedModel(std::string id, infer::Engine& engine, TextParts text,
                         infer::SamplerOptions sampling)
    : id_(std::move(id)),
      engine_(engine),
      text_(std::move(text)),
      sampling_(std::move(sampling)),
      created_(static_cast<int64_t>(std::time(nullptr))) {
  if (text_.chat_template) tool_form_ = text::find_tool_form(*text_.chat_template);
  if (!text_.tokenizer) return;
  if (text_.chat_template) reasoning_ = text::find_reasoning(text_.chat_template->source());
  constraints_ = std::make_unique<ConstraintCache>(*text_.tokenizer, config().vocab_size,
                                                   tool_form_.syntax->all_markers());
  for (int32_t token = 0; token < text_.tokenizer->vocab_size(); ++token) {
    if (const auto bytes = text_.tokenizer->id_to_bytes(token)) {
      max_token_bytes_ = std::max(max_token_bytes_, bytes->size());
    }
  }
}

void ServedModel::check_name(const std::string& name) const {
  if (name.empty() || name == id_) return;
  throw ApiError(
      404,
      fmt::format("there is no model '{}' here; this server has '{}'", name.substr(0, 200), id_),
      "model", "model_not_found")
      .quoting();
}

std::vector<int32_t> ServedModel::encode(std::string_view text, text::AddSpecial add_special,
                                         const char* field) const {
  if (!text_.tokenizer) {
    throw ApiError(400, "this model has no tokenizer; give token ids instead of text", field);
  }
  // Refused before any work: even the longest tokens could not make it fit.
  const std::size_t most = max_token_bytes_ * static_cast<std::size_t>(context() + 1);
  if (text.size() > most) {
    throw ApiError(400,
                   fmt::format("this model's maximum context length is {} tokens; a text of {} "
                               "bytes has at least {} tokens",
                               context(), text.size(), text.size() / max_token_bytes_),
                   field, "context_length_exceeded");
  }
  return text_.tokenizer->encode(text, {.add_special = add_special});
}

std::shared_ptr<const constrain::Constraint> ServedModel::constraint(
    const ConstraintSpec& spec) const {
  if (!constraints_) {
    throw ApiError(400, "this model has no tokenizer: nothing can be said about its text",
                   spec.field);
  }
  return constraints_->get(spec);
}

std::shared_ptr<const constrain::Restriction> ServedModel::restriction(
    constrain::RestrictionRules rules) const {
  for (const int32_t token : rules.only_tokens) {
    if (token < config().vocab_size) continue;
    refuse("allowed_token_ids", "allowed_token_ids: {} is outside the vocabulary of {}", token,
           config().vocab_size);
  }
  if (constraints_) {
    return std::make_shared<const constrain::Restriction>(std::move(rules),
                                                          constraints_->vocabulary());
  }
  if (!rules.no_texts.empty()) {
    refuse("bad_words",
           "bad_words: this model has no tokenizer: nothing can be said about its text");
  }
  std::vector<std::string> no_bytes(static_cast<std::size_t>(config().vocab_size));
  return std::make_shared<const constrain::Restriction>(
      std::move(rules), std::make_shared<const constrain::Vocabulary>(std::move(no_bytes)));
}

std::string ServedModel::token_bytes(int32_t id) const {
  if (!text_.tokenizer) return std::to_string(id);
  return text_.tokenizer->id_to_bytes(id).value_or("");
}

std::string ServedModel::token_text(int32_t id) const {
  const std::string bytes = token_bytes(id);
  if (is_valid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

TextStream::TextStream(const ServedModel& model, text::SkipSpecial skip) {
  if (model.text().tokenizer) {
    decoder_.emplace(
        *model.text().tokenizer,
        text::DecodeOptions{.skip_special = skip, .ill_formed = text::IllFormed::replace});
  }
}

std::string TextStream::push(int32_t id) {
  if (decoder_) return decoder_->push(id);
  return fmt::format("{}{}", std::exchange(is_first_, false) ? "" : " ", id);
}

std::string TextStream::finish() { return decoder_ ? decoder_->finish() : ""; }

}  // namespace dsmoe::serve

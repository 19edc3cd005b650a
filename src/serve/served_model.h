// What a server serves: an engine, and the text side of its model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/restriction.h"
#include "infer/engine/engine.h"
#include "serve/constraint_cache.h"
#include "text/chat_template.h"
#include "text/reasoning.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tools/tool_form.h"

namespace dsmoe::serve {

// The text side of a folder. Without a tokenizer prompts are token ids and answers are numbers.
struct TextParts {
  std::optional<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  text::SpecialTokenTexts special;
};
// `chat_template`: a file that replaces the folder's; empty: the folder's.
TextParts load_text_parts(const std::filesystem::path& folder,
                          const std::filesystem::path& chat_template);

class ServedModel {
 public:
  ServedModel(std::string id, infer::Engine& engine, TextParts text,
              infer::SamplerOptions sampling = {});

  const std::string& id() const { return id_; }
  int64_t created() const { return created_; }
  infer::Engine& engine() const { return engine_; }
  const model::ModelConfig& config() const { return engine_.model().config; }
  int64_t context() const { return engine_.model().context; }
  const TextParts& text() const { return text_; }
  // How tools get into its prompts and out of its answers.
  const text::ToolForm& tool_form() const { return tool_form_; }
  const text::ReasoningMarkers* reasoning() const { return reasoning_; }  // null: none
  // What requests get that do not say how to sample.
  const infer::SamplerOptions& sampling() const { return sampling_; }

  // Throws ApiError(404) when a request asks for another one; an empty name means this one.
  void check_name(const std::string& name) const;
  // Throw ApiError(400) about `field` when there is no tokenizer, or the text is certainly too
  // long.
  std::vector<int32_t> encode(std::string_view text, text::AddSpecial add_special,
                              const char* field = "prompt") const;
  // Prepared, now or before. Throws ApiError(400).
  std::shared_ptr<const constrain::Constraint> constraint(const ConstraintSpec& spec) const;
  std::shared_ptr<const constrain::Restriction> restriction(
      constrain::RestrictionRules rules) const;
  // The bytes of one token; its number without a tokenizer.
  std::string token_bytes(int32_t id) const;
  // The same as JSON can hold it: "bytes:\xe2\x82" when it is no valid UTF-8.
  std::string token_text(int32_t id) const;

 private:
  std::string id_;
  infer::Engine& engine_;
  TextParts text_;
  text::ToolForm tool_form_;
  const text::ReasoningMarkers* reasoning_ = nullptr;
  infer::SamplerOptions sampling_;
  int64_t created_;
  std::size_t max_token_bytes_ = 1;
  std::unique_ptr<ConstraintCache> constraints_;  // null without a tokenizer
};

// Ids to text as they come, valid UTF-8, no piece ends inside a character; special tokens are not
// shown, or are where `skip` says so.
class TextStream {
 public:
  TextStream(const ServedModel& model, text::SkipSpecial skip);
  std::string push(int32_t id);
  std::string finish();

 private:
  std::optional<text::StreamDecoder> decoder_;  // absent: numbers
  bool is_first_ = true;
};

}  // namespace dsmoe::serve

// Joins the tokenizer of a folder to the commands.
#include "commands/text_side.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "infer/measure/evaluate.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::app {

struct TextSide::State {
  std::filesystem::path folder;
  std::optional<text::Tokenizer> tokenizer;
  text::SpecialTokenTexts special;

  std::optional<int32_t> id_of(const std::optional<std::string>& token) const {
    return tokenizer && token ? tokenizer->token_to_id(*token) : std::nullopt;
  }
};
struct TextSide::Stream::State {
  std::optional<text::StreamDecoder> decoder;  // absent: numbers
  bool is_first = true;
};

TextSide::TextSide(const std::filesystem::path& folder)
    : state_(std::make_unique<State>(State{.folder = folder})) {
  if (text::has_tokenizer(folder)) {
    state_->tokenizer = text::Tokenizer::from_file(folder.string());
    state_->special = text::load_special_tokens(folder);
  }
}
TextSide::~TextSide() = default;

bool TextSide::has_tokenizer() const { return state_->tokenizer.has_value(); }

const text::Tokenizer* TextSide::tokenizer() const {
  return has_tokenizer() ? &*state_->tokenizer : nullptr;
}

const text::SpecialTokenTexts& TextSide::special() const { return state_->special; }

void TextSide::require_tokenizer() const {
  if (has_tokenizer()) return;
  fail(ErrorKind::input,
       "{}: no tokenizer.json in it, so text cannot be read; put the model's own there, or "
       "give token ids where a command takes them",
       state_->folder.string());
}

std::vector<int32_t> TextSide::encode(std::string_view text, AroundText around) const {
  require_tokenizer();
  return state_->tokenizer->encode(
      text, {.add_special =
                 around == AroundText::special ? text::AddSpecial::yes : text::AddSpecial::no});
}

std::optional<int32_t> TextSide::bos_token() const {
  if (has_tokenizer() && !state_->tokenizer->frame().before.empty()) {
    return state_->tokenizer->frame().before.front();
  }
  return state_->id_of(state_->special.bos);
}

std::optional<int32_t> TextSide::prefix_token(const model::ModelConfig& config) const {
  if (const auto bos = bos_token()) return bos;
  if (const auto eos = state_->id_of(state_->special.eos)) return eos;
  if (const auto id = infer::prefix_token(config)) return static_cast<int32_t>(*id);
  return std::nullopt;
}

std::shared_ptr<const constrain::Vocabulary> TextSide::vocabulary(int64_t num_ids) const {
  require_tokenizer();
  return constrain::vocabulary_of(*state_->tokenizer, num_ids);
}

std::string TextSide::token_text(int32_t id) const {
  if (!has_tokenizer()) return std::to_string(id);
  return state_->tokenizer->id_to_bytes(id).value_or(fmt::format("<{}>", id));
}

TextSide::Stream::Stream(const TextSide& side) : state_(std::make_unique<State>()) {
  if (side.has_tokenizer()) {
    state_->decoder.emplace(*side.state_->tokenizer,
                            text::DecodeOptions{.skip_special = text::SkipSpecial::yes,
                                                .ill_formed = text::IllFormed::replace});
  }
}
TextSide::Stream::~Stream() = default;

std::string TextSide::Stream::push(int32_t id) {
  if (state_->decoder) return state_->decoder->push(id);
  return fmt::format("{}{}", std::exchange(state_->is_first, false) ? "" : " ", id);
}

std::string TextSide::Stream::finish() { return state_->decoder ? state_->decoder->finish() : ""; }

}  // namespace dsmoe::app

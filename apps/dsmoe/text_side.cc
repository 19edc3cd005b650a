// Joins the tokenizer of a folder to the commands.
#include "text_side.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace dsmoe::app {

struct TextSide::State {
  std::filesystem::path folder;
  std::optional<text::Tokenizer> tokenizer;
};
struct TextSide::Stream::State {
  std::optional<text::StreamDecoder> decoder;  // absent: numbers
  bool is_first = true;
};

TextSide::TextSide(const std::filesystem::path& folder)
    : state_(std::make_unique<State>(State{.folder = folder})) {
  if (is_listed(folder / "tokenizer.json")) {
    state_->tokenizer = text::Tokenizer::from_file(folder.string());
  }
}
TextSide::~TextSide() = default;

bool TextSide::has_tokenizer() const { return state_->tokenizer.has_value(); }

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

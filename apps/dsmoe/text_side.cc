// Joins the tokenizer of a folder to the commands.
#include "text_side.h"

#include "base/error.h"

namespace dsmoe::app {

struct TextSide::State {
  std::filesystem::path folder;
};
struct TextSide::Stream::State {
  bool first = true;
};

TextSide::TextSide(const std::filesystem::path& folder)
    : state_(std::make_unique<State>(State{.folder = folder})) {}
TextSide::~TextSide() = default;

bool TextSide::has_tokenizer() const { return false; }

void TextSide::require_tokenizer() const {
  fail(ErrorKind::input, "{}: no tokenizer.json, so text cannot be read; give token ids instead",
       state_->folder.string());
}

std::vector<int32_t> TextSide::encode(std::string_view) const {
  require_tokenizer();
  return {};
}
std::vector<int32_t> TextSide::encode_rendered(std::string_view) const {
  require_tokenizer();
  return {};
}

std::string TextSide::token_text(int32_t id) const { return std::to_string(id); }

TextSide::Stream::Stream(const TextSide&) : state_(std::make_unique<State>()) {}
TextSide::Stream::~Stream() = default;

std::string TextSide::Stream::push(int32_t id) {
  std::string text = fmt::format("{}{}", state_->first ? "" : " ", id);
  state_->first = false;
  return text;
}

std::string TextSide::Stream::finish() { return {}; }

}  // namespace dsmoe::app

// Tokens as text, where the model folder has a tokenizer; as numbers where it has none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::app {

// What the tokenizer's post-processor puts around a text (BOS), or nothing.
enum class AroundText { special, nothing };

class TextSide {
 public:
  // A folder without tokenizer.json is fine until text is needed; a broken one is refused.
  explicit TextSide(const std::filesystem::path& folder);
  ~TextSide();
  TextSide(const TextSide&) = delete;
  TextSide& operator=(const TextSide&) = delete;

  bool has_tokenizer() const;
  // Throws Error(input) that names the missing tokenizer.json.
  void require_tokenizer() const;

  // Special tokens written in the text are the tokens. Throws as require_tokenizer() does.
  std::vector<int32_t> encode(std::string_view text, AroundText around) const;
  // The bytes of one token, or its number.
  std::string token_text(int32_t id) const;

  // Turns ids into text as they come; never ends inside a character.
  class Stream {
   public:
    explicit Stream(const TextSide& side);
    ~Stream();
    std::string push(int32_t id);
    std::string finish();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsmoe::app

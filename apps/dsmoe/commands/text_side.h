// Tokens as text, where the model folder has a tokenizer; as numbers where it has none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/vocabulary.h"
#include "model/config.h"

namespace dsmoe::text {
class Tokenizer;
struct SpecialTokenTexts;
}  // namespace dsmoe::text

namespace dsmoe::app {

// The tokenizer's frame around a text (BOS, as a rule), or nothing.
enum class AroundText { special, nothing };

class TextSide {
 public:
  // A folder without tokenizer.json is fine until text is needed; a broken one is refused.
  explicit TextSide(const std::filesystem::path& folder);
  ~TextSide();
  TextSide(const TextSide&) = delete;
  TextSide& operator=(const TextSide&) = delete;

  bool has_tokenizer() const;
  // Null where there is none.
  const text::Tokenizer* tokenizer() const;
  // The texts of special tokens, as tokenizer_config.json names them.
  const text::SpecialTokenTexts& special() const;
  // Throws Error(input) that names the missing tokenizer.json.
  void require_tokenizer() const;

  // Special tokens written in the text are the tokens. Throws as require_tokenizer() does.
  std::vector<int32_t> encode(std::string_view text, AroundText around) const;
  // What a text begins with: the frame's token, else the one that tokenizer_config.json names.
  std::optional<int32_t> bos_token() const;
  // What stands for "nothing before": bos_token(), else the named eos, else what config.json says.
  std::optional<int32_t> prefix_token(const model::ModelConfig& config) const;
  // For a model with so many rows. Throws as require_tokenizer() does.
  std::shared_ptr<const constrain::Vocabulary> vocabulary(int64_t num_ids) const;
  // The bytes of one token, or its number.
  std::string token_text(int32_t id) const;

  // Turns ids into valid UTF-8 as they come: no piece ends inside a character, broken ones are
  // U+FFFD.
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

// Tokens and texts that an answer may not hold, whatever else it says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/vocabulary.h"

namespace dsmoe::constrain {

struct RestrictionRules {
  std::vector<int32_t> only_tokens;  // empty: all
  std::vector<std::string>
      no_texts;  // none of them is in the answer, however it is cut into tokens
};

// Immutable, shared between threads.
class Restriction {
 public:
  Restriction(RestrictionRules rules, std::shared_ptr<const Vocabulary> vocabulary);

  // Sets `bits` to the tokens that may follow a text that ends so.
  void allowed(std::string_view end, TokenBits& bits) const;
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // More bytes of a text do not matter.
  std::size_t memory() const { return memory_; }

 private:
  // Where a text ends in `begun`, the tokens below the node of the trie complete one of no_texts.
  struct Completion {
    std::size_t node = 0;
    std::string begun;
  };
  void add_completions(const std::string& text);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<Completion> completions_;  // by node
  std::size_t memory_ = 0;
  TokenBits always_;  // but for those that complete a text
};

// One answer. Not shared between threads.
class Restrained {
 public:
  explicit Restrained(std::shared_ptr<const Restriction> restriction)
      : restriction_(std::move(restriction)) {}

  void allowed(TokenBits& bits) const { restriction_->allowed(end_, bits); }
  void take(int32_t token);

 private:
  std::shared_ptr<const Restriction> restriction_;
  std::string end_;  // of the answer
};

}  // namespace dsmoe::constrain

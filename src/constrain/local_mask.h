// The tokens that may come at one state, whoever called its rule: found once, used everywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "constrain/configuration.h"
#include "constrain/vocabulary.h"

namespace dsmoe::constrain {

// Tokens that behave alike: written inside the rule to their end.
struct TokenClass {
  uint32_t items = 0;  // of a counted rule that they begin
  int32_t rest = 0;    // tokens that certainly suffice from behind them to the end of an item
  std::vector<int32_t> tokens;  // a few
  TokenBits bits;               // or many
};

// What is left of tokens where the rule has ended inside them: depends on who called it.
struct Remainders {
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;
    uint32_t end = 0;  // one past its subtree
    uint32_t first_token = 0;
  };
  struct Token {
    int32_t token = 0;
    uint32_t items = 0;  // begun where the rule ended
  };
  std::vector<Node> nodes;  // depth first, and one behind the last
  std::vector<Token> tokens;
  std::size_t max_depth = 0;

  std::span<const Token> tokens_at(std::size_t node) const {
    return std::span(tokens).subspan(nodes[node].first_token,
                                     nodes[node + 1].first_token - nodes[node].first_token);
  }
  std::size_t num_nodes() const { return nodes.empty() ? 0 : nodes.size() - 1; }
};

struct LocalMask {
  std::vector<TokenClass> classes;
  TokenBits all;  // of all classes together
  uint32_t most_items = 0;
  int32_t most_rest = 0;
  Remainders remainders;

  std::size_t num_bytes() const;
};

// Throws Error(input) when the state is too ambiguous.
LocalMask find_local_mask(const Automaton& automaton, const Vocabulary& vocabulary,
                          int32_t state_idx);

}  // namespace dsmoe::constrain

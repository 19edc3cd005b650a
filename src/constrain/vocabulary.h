// The byte strings of a vocabulary as a trie, laid out in depth-first order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace dsmoe::constrain {

// One set of tokens: bit t of word t / 64.
using TokenBits = std::vector<uint64_t>;

inline void set_token(TokenBits& bits, int32_t token) {
  bits[static_cast<std::size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}
inline bool has_token(std::span<const uint64_t> bits, int32_t token) {
  return (bits[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

// Immutable, shared between threads.
class Vocabulary {
 public:
  // A node's children are the nodes that begin right behind it and behind each other's `end`.
  struct Node {
    uint32_t end = 0;          // one past its subtree
    uint32_t first_token = 0;  // into token(); its own tokens end where those of the next begin
    uint16_t depth = 0;        // bytes from the root; the root itself is not a node
    uint8_t byte = 0;
  };

  // Entry t: the bytes that token t adds to a text; empty for tokens that are never to be written.
  explicit Vocabulary(std::vector<std::string> bytes);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  std::size_t num_words() const { return (bytes_.size() + 63) / 64; }
  std::string_view bytes(int32_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  std::size_t max_depth() const { return max_depth_; }

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // The tokens whose bytes end at the node.
  std::span<const int32_t> tokens_at(std::size_t node) const {
    return std::span(tokens_).subspan(nodes_[node].first_token,
                                      nodes_[node + 1].first_token - nodes_[node].first_token);
  }
  // The tokens of the node and of everything below it, in the order of their bytes.
  std::span<const int32_t> tokens_below(std::size_t node) const {
    return std::span(tokens_).subspan(
        nodes_[node].first_token, nodes_[nodes_[node].end].first_token - nodes_[node].first_token);
  }
  // The child of `node` (-1: the root) by that byte; -1: none.
  int64_t child(int64_t node, uint8_t byte) const;
  // Whether the byte alone is a token.
  bool has_byte(uint8_t byte) const;

 private:
  std::vector<std::string> bytes_;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<int32_t> tokens_;
  std::array<int64_t, 256> root_child_;
  std::size_t max_depth_ = 0;
};

// Of a tokenizer, for a model with so many rows: unused ids are never written, nor are special
// tokens but those that stand in `markers`.
std::shared_ptr<const Vocabulary> vocabulary_of(const text::Tokenizer& tokenizer, int64_t num_ids,
                                                std::string_view markers = "");

}  // namespace dsmoe::constrain

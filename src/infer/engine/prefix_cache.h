// Beginnings of sequences that were computed before: full KV pages, found again by their tokens.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "attention/kv_cache.h"
#include "infer/sequence/routes.h"

namespace dsmoe::infer {

// What a page's keys and values depend on besides its tokens, and who may see that it is there.
struct PrefixScope {
  uint64_t owner = 0;
  int64_t top_k = 0;
};

// A tree of blocks of 64 tokens; a node stands for all tokens from the start of the sequence to the
// end of its block. Not thread-safe.
class PrefixCache {
 public:
  using NodeId = uint64_t;
  static constexpr NodeId kRoot = 0;

  struct Block {
    int32_t page = -1;
    Routes routes;  // of its tokens
  };

  explicit PrefixCache(attention::KvCache& cache) : cache_(cache) {}

  // The child of `parent` that holds `tokens` (64 of them); kRoot when there is none.
  NodeId find(const PrefixScope& scope, NodeId parent, std::span<const int32_t> tokens);
  const Block& block(NodeId node) const { return nodes_.at(node).block; }

  // Keeps a full page of a sequence; the cache becomes one more holder. Returns the node: the one
  // that was there already, if any. kRoot, and nothing is kept: `parent` was evicted meanwhile.
  // Without memory it throws, and nothing is kept.
  NodeId insert(const PrefixScope& scope, NodeId parent, std::span<const int32_t> tokens,
                Block block);

  // Frees the page used longest ago that nobody else holds and no other block follows. False: there
  // is none. Needs no memory.
  bool evict_one();
  int64_t num_evictable() const;  // pages that evict_one() could free in the end
  int64_t num_pages() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  struct Node {
    std::string key;
    NodeId parent = kRoot;
    Block block;
    int64_t num_children = 0;
    uint64_t last_used = 0;
  };
  void touch(NodeId id);

  attention::KvCache& cache_;
  std::unordered_map<std::string, NodeId> by_key_;
  std::unordered_map<NodeId, Node> nodes_;
  std::set<std::pair<uint64_t, NodeId>> leaves_;  // by last use
  NodeId next_id_ = 1;                            // never used twice, so old keys match nothing
  uint64_t clock_ = 0;
};

}  // namespace dsmoe::infer

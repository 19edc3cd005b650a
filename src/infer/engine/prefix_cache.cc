// A map from (scope, parent, tokens) to pages; leaves are forgotten oldest first.
#include "infer/prefix_cache.h"

namespace dsmoe::infer {
namespace {

// Exact bytes, not a hash: two different beginnings never meet.
std::string key_of(const PrefixScope& scope, PrefixCache::NodeId parent,
                   std::span<const int32_t> tokens) {
  std::string key;
  const auto append = [&](const void* data, std::size_t bytes) {
    key.append(static_cast<const char*>(data), bytes);
  };
  append(&parent, sizeof(parent));
  append(&scope.owner, sizeof(scope.owner));
  append(&scope.top_k, sizeof(scope.top_k));
  append(tokens.data(), tokens.size_bytes());
  return key;
}

}  // namespace

void PrefixCache::touch(NodeId id) {
  Node& node = nodes_.at(id);
  const bool is_leaf = leaves_.erase({node.last_used, id}) > 0;
  node.last_used = ++clock_;
  if (is_leaf) leaves_.insert({node.last_used, id});
}

PrefixCache::NodeId PrefixCache::find(const PrefixScope& scope, NodeId parent,
                                      std::span<const int32_t> tokens) {
  const auto found = by_key_.find(key_of(scope, parent, tokens));
  if (found == by_key_.end()) return kRoot;
  touch(found->second);
  return found->second;
}

PrefixCache::NodeId PrefixCache::insert(const PrefixScope& scope, NodeId parent,
                                        std::span<const int32_t> tokens, Block block) {
  if (parent != kRoot && !nodes_.contains(parent)) return kRoot;
  std::string key = key_of(scope, parent, tokens);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    touch(found->second);
    return found->second;
  }
  cache_.share(block.page);
  const NodeId id = next_id_++;
  by_key_[key] = id;
  nodes_[id] = {
      .key = std::move(key), .parent = parent, .block = std::move(block), .last_used = ++clock_};
  leaves_.insert({clock_, id});
  if (parent != kRoot) {
    Node& above = nodes_.at(parent);
    if (above.num_children++ == 0) leaves_.erase({above.last_used, parent});
  }
  return id;
}

bool PrefixCache::evict_one() {
  for (auto leaf = leaves_.begin(); leaf != leaves_.end(); ++leaf) {
    const NodeId id = leaf->second;
    const Node& node = nodes_.at(id);
    if (cache_.num_holders(node.block.page) > 1) continue;  // a running sequence reads it
    cache_.release(node.block.page);
    const NodeId parent = node.parent;
    leaves_.erase(leaf);
    by_key_.erase(node.key);
    nodes_.erase(id);
    if (parent != kRoot) {
      Node& above = nodes_.at(parent);
      if (--above.num_children == 0) leaves_.insert({above.last_used, parent});
    }
    return true;
  }
  return false;
}

int64_t PrefixCache::num_evictable() const {
  int64_t count = 0;
  for (const auto& [id, node] : nodes_) {
    if (cache_.num_holders(node.block.page) == 1) ++count;
  }
  return count;
}

}  // namespace dsmoe::infer

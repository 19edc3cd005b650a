// A map from (scope, parent, tokens) to pages; leaves are forgotten oldest first.
#include "infer/engine/prefix_cache.h"

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
  auto leaf = leaves_.extract({node.last_used, id});
  node.last_used = ++clock_;
  if (leaf.empty()) return;
  leaf.value().first = node.last_used;
  leaves_.insert(std::move(leaf));
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
  const NodeId id = next_id_++;
  const std::pair leaf{++clock_, id};
  const int32_t page = block.page;
  try {  // nothing is kept by half
    leaves_.insert(leaf);
    nodes_.insert(
        {id, {.key = key, .parent = parent, .block = std::move(block), .last_used = leaf.first}});
    by_key_.insert({std::move(key), id});
  } catch (const std::bad_alloc&) {
    leaves_.erase(leaf);
    nodes_.erase(id);
    throw;
  }
  cache_.share(page);
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
    auto freed = leaves_.extract(leaf);
    by_key_.erase(node.key);
    nodes_.erase(id);
    if (parent != kRoot) {
      Node& above = nodes_.at(parent);
      if (--above.num_children > 0) return true;
      freed.value() = {above.last_used, parent};
      leaves_.insert(std::move(freed));
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

// Pages come from the cache of keys and values; full ones may be shared through their prefixes.
#include "infer/engine/page_pool.h"

#include <utility>

namespace dsmoe::infer {

PagePool::PagePool(const kernels::Context& context, const model::Model& model, int64_t num_pages)
    : cache_(context, model.kv_layers(), num_pages), prefix_(cache_) {}

void PagePool::reserve(EngineSequence& sequence, int64_t length) {
  cache_.reserve(sequence.kv, length);
  sequence.refresh();
}

void PagePool::truncate(EngineSequence& sequence, int64_t length) {
  cache_.truncate(sequence.kv, length);
  sequence.refresh();
}

int64_t PagePool::attach(EngineSequence& sequence) {
  sequence.node = PrefixCache::kRoot;
  sequence.writes_prefix = !sequence.request.is_replayed();
  const bool needs_all =
      sequence.request.scores_prompt || sequence.request.pooling == Pooling::mean;
  if (!sequence.writes_prefix || needs_all) return 0;
  constexpr int64_t kBlock = kernels::kKeyBlock;
  // The last token is always computed: its logits are wanted.
  const auto usable = static_cast<int64_t>(sequence.tokens.size()) - 1;
  sequence.kv.pages.reserve(static_cast<std::size_t>(usable / kBlock));  // a share is not lost
  int64_t reused = 0;
  while (reused + kBlock <= usable) {
    const auto node =
        prefix_.find(sequence.scope(), sequence.node,
                     std::span(sequence.tokens).subspan(static_cast<std::size_t>(reused), kBlock));
    if (node == PrefixCache::kRoot) break;
    const PrefixCache::Block& block = prefix_.block(node);
    cache_.share(block.page);
    sequence.kv.pages.push_back(block.page);
    sequence.node = node;
    sequence.add_routes(reused, block.routes.view());
    reused += kBlock;
    sequence.kv.length = reused;
    sequence.refresh();
  }
  return reused;
}

void PagePool::keep_blocks(EngineSequence& sequence, int64_t begin) {
  constexpr int64_t kBlock = kernels::kKeyBlock;
  for (int64_t b = begin / kBlock; (b + 1) * kBlock <= sequence.kv.length; ++b) {
    PrefixCache::Block block{.page = sequence.kv.pages[static_cast<std::size_t>(b)],
                             .routes = sequence.open.take_front(kBlock)};
    sequence.node = prefix_.insert(
        sequence.scope(), sequence.node,
        std::span(sequence.tokens).subspan(static_cast<std::size_t>(b * kBlock), kBlock),
        std::move(block));
    if (sequence.node != PrefixCache::kRoot) {
      take_kept_page(sequence, static_cast<std::size_t>(b));
      continue;
    }
    sequence.writes_prefix = false;
    sequence.open.clear();
    return;
  }
}

// Another sequence's page of the same block holds the same bits. Two of them would make the cache's
// one impossible to evict while this sequence holds what follows it, and the pool may have no room
// for both.
void PagePool::take_kept_page(EngineSequence& sequence, std::size_t block_idx) {
  int32_t& page = sequence.kv.pages[block_idx];
  const int32_t kept = prefix_.block(sequence.node).page;
  if (page == kept) return;
  cache_.share(kept);
  cache_.release(std::exchange(page, kept));
}

}  // namespace dsmoe::infer

// The pages of all sequences of an engine, and the beginnings that stay known after their sequences
// have ended.
#pragma once

#include <cstdint>

#include "infer/engine/engine_sequence.h"
#include "infer/engine/prefix_cache.h"
#include "model/language_model.h"

namespace dsmoe::infer {

class PagePool {
 public:
  PagePool(const kernels::Context& context, const model::Model& model, int64_t num_pages);

  attention::KvCache& cache() { return cache_; }
  int64_t num_pages() const { return cache_.num_pages(); }
  int64_t num_free() const { return cache_.num_free_pages(); }
  int64_t num_evictable() const { return prefix_.num_evictable(); }
  int64_t num_cached() const { return prefix_.num_pages(); }
  bool evict_one() { return prefix_.evict_one(); }

  // Pages for `length` tokens; so many are free.
  void reserve(EngineSequence& sequence, int64_t length);
  // Forgets what was forwarded from `length` on.
  void truncate(EngineSequence& sequence, int64_t length);

  // Shares the pages of its beginning that are known, and hands out their routes. Returns how many
  // tokens they hold.
  int64_t attach(EngineSequence& sequence);
  // The blocks that forwarding from `begin` on completed become findable.
  void keep_blocks(EngineSequence& sequence, int64_t begin);

 private:
  void take_kept_page(EngineSequence& sequence, std::size_t block_idx);

  attention::KvCache cache_;
  PrefixCache prefix_;
};

}  // namespace dsmoe::infer

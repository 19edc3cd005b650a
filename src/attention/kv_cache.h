// The KV cache: pages of 64 positions for all layers, handed out to sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context.h"
#include "kernels/kv_pages.h"
#include "tensor/arena.h"

namespace dsmoe::attention {

// One document: the pages that hold its keys and values, and how many positions are filled.
struct KvSequence {
  std::vector<int32_t> pages;
  int64_t length = 0;
};

// What a model's layers keep, all of them alike.
struct KvLayers {
  kernels::KvShape shape;  // in any layout: the cache takes that of its table
  int64_t count = 0;
};

class KvCache {
 public:
  KvCache(const kernels::Context& context, const KvLayers& layers, int64_t num_pages);

  static int64_t pages_for(int64_t positions) {
    return (positions + kernels::kKeyBlock - 1) / kernels::kKeyBlock;
  }

  // Gives the sequence pages for `length` positions; they read as zero until written. Throws
  // Error(resource) and changes nothing when too few are free; nor does it without memory.
  void reserve(KvSequence& sequence, int64_t length);
  // Forgets positions from `length` on and frees their pages; what remains of the last page reads
  // as zero.
  void truncate(KvSequence& sequence, int64_t length);

  // A full page may be held by several: sequences with a common beginning, or a cache of them. It
  // is freed when the last lets go. Only full pages may be shared: the rest of a page is written
  // to.
  void share(int32_t page);
  void release(int32_t page);
  int32_t num_holders(int32_t page) const { return holders_[static_cast<std::size_t>(page)]; }

  const kernels::KvPages& layer(int64_t layer_idx) const { return layers_[layer_idx]; }
  int64_t num_free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t num_pages() const { return static_cast<int64_t>(holders_.size()); }
  const tensor::Arena& arena() const { return arena_; }

 private:
  bool drop(int32_t page);  // one holder less; true: nobody holds it any more
  void zero_pages(int32_t first, int64_t count);
  void zero_from(int32_t page, int64_t place);

  kernels::Context context_;
  tensor::Arena arena_;
  std::vector<kernels::KvPages> layers_;
  std::vector<int32_t> free_pages_;  // the next one to hand out is last
  std::vector<int32_t> holders_;     // [pages]; 0: free
};

}  // namespace dsmoe::attention

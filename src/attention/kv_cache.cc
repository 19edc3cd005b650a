// Page bookkeeping; clearing keeps the promise that unwritten positions are zero.
#include "attention/kv_cache.h"

#include <limits>

#include "kernels/table.h"

namespace dsmoe::attention {
namespace {

// Positions of all pages together are numbered in 32 bits (attention::Forward::kv_slot).
std::size_t checked_pages(int64_t num_pages) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / kernels::kKeyBlock;
  if (num_pages > kMost) {
    fail(ErrorKind::usage, "a KV cache of {} pages was asked for, at most {} are possible",
         num_pages, kMost);
  }
  return static_cast<std::size_t>(num_pages);
}

}  // namespace

KvCache::KvCache(const kernels::Context& context, const KvLayers& layers, int64_t num_pages)
    : context_(context),
      arena_("kv cache", context.table->allocator),
      holders_(checked_pages(num_pages), 0) {
  for (int64_t l = 0; l < layers.count; ++l) {
    kernels::KvPages pages{
        .device = context.table->device, .num_pages = num_pages, .shape = layers.shape};
    pages.shape.layout = context.table->weight_layout;
    const auto take = [&](const char* name, int64_t page_bytes) {
      return arena_.bytes(name, static_cast<std::size_t>(num_pages * page_bytes));
    };
    pages.keys = take("keys", pages.shape.key_page_bytes());
    pages.values = pages.shape.values_lie_in_keys()
                       ? pages.keys
                       : take("values", pages.shape.value_page_bytes());
    layers_.push_back(pages);
  }
  for (int64_t page = num_pages - 1; page >= 0; --page)
    free_pages_.push_back(static_cast<int32_t>(page));
}

void KvCache::reserve(KvSequence& sequence, int64_t length) {
  const int64_t missing = pages_for(length) - static_cast<int64_t>(sequence.pages.size());
  if (missing > num_free_pages()) {
    fail(ErrorKind::resource, "the KV cache is full: {} more pages of {} positions needed, {} free",
         missing, kernels::kKeyBlock, num_free_pages());
  }
  if (missing <= 0) return;
  sequence.pages.reserve(sequence.pages.size() + static_cast<std::size_t>(missing));
  for (int64_t i = 0; i < missing; ++i) {
    sequence.pages.push_back(free_pages_.back());
    holders_[static_cast<std::size_t>(free_pages_.back())] = 1;
    free_pages_.pop_back();
  }
}

void KvCache::truncate(KvSequence& sequence, int64_t length) {
  const int64_t kept = pages_for(length);
  // Neighbours that become free are cleared together: a device would else be asked very often.
  int32_t first = 0;
  int64_t count = 0;
  while (static_cast<int64_t>(sequence.pages.size()) > kept) {
    const int32_t page = sequence.pages.back();
    sequence.pages.pop_back();
    if (!drop(page)) continue;
    if (count > 0 && page + 1 != first) {
      zero_pages(first, count);
      count = 0;
    }
    first = page;
    ++count;
    free_pages_.push_back(page);
  }
  if (count > 0) zero_pages(first, count);
  if (length % kernels::kKeyBlock != 0)
    zero_from(sequence.pages.back(), length % kernels::kKeyBlock);
  sequence.length = length;
}

void KvCache::share(int32_t page) {
  int32_t& holders = holders_[static_cast<std::size_t>(page)];
  DSMOE_CHECK(holders > 0, "page {} is free and cannot be shared", page);
  ++holders;
}

bool KvCache::drop(int32_t page) {
  int32_t& holders = holders_[static_cast<std::size_t>(page)];
  DSMOE_CHECK(holders > 0, "page {} is free already", page);
  return --holders == 0;
}

void KvCache::release(int32_t page) {
  if (!drop(page)) return;
  zero_pages(page, 1);  // at once, so that free pages are always zero
  free_pages_.push_back(page);
}

void KvCache::zero_pages(int32_t first, int64_t count) {
  for (const kernels::KvPages& pages : layers_) {
    const auto clear = [&](void* data, int64_t page_bytes) {
      kernels::zero(context_, static_cast<char*>(data) + first * page_bytes,
                    static_cast<std::size_t>(count * page_bytes));
    };
    clear(pages.keys, pages.shape.key_page_bytes());
    if (!pages.shape.values_lie_in_keys()) clear(pages.values, pages.shape.value_page_bytes());
  }
}

void KvCache::zero_from(int32_t page, int64_t first_place) {
  for (const kernels::KvPages& pages : layers_) {
    const kernels::KvShape& shape = pages.shape;
    const std::size_t element = tensor::size_of(shape.dtype);
    const auto clear = [&](void* data, int64_t offset, int64_t count) {
      kernels::zero(context_, static_cast<char*>(data) + static_cast<std::size_t>(offset) * element,
                    static_cast<std::size_t>(count) * element);
    };
    // Numbers of one position lie side by side in row-major pages only.
    const bool rows = shape.layout == kernels::WeightLayout::row_major;
    const auto clear_head = [&](void* data, int64_t head, int64_t width, const auto& index) {
      if (rows)
        return clear(data, head + index(first_place, 0),
                     (kernels::kKeyBlock - first_place) * width);
      for (int64_t place = first_place; place < kernels::kKeyBlock; ++place) {
        for (int64_t d = 0; d < width; ++d) clear(data, head + index(place, d), 1);
      }
    };
    for (int64_t head = 0; head < shape.heads; ++head) {
      clear_head(pages.keys, shape.key_offset(page, head), shape.key_width,
                 [&](int64_t place, int64_t d) { return shape.key_index(place, d); });
      if (shape.values_lie_in_keys()) continue;
      clear_head(pages.values, shape.value_offset(page, head), shape.value_width,
                 [&](int64_t place, int64_t d) { return shape.value_index(place, d); });
    }
  }
}

}  // namespace dsmoe::attention

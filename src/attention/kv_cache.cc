// Page bookkeeping; clearing keeps the promise that unwritten positions are zero.
#include "model/kv_cache.h"

#include <limits>

#include "kernels/table.h"

namespace dsmoe::model {
namespace {

// Positions of all pages together are numbered in 32 bits (BatchViews::kv_slot).
std::size_t checked_pages(int64_t num_pages) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / kernels::kKeyBlock;
  if (num_pages > kMost) {
    fail(ErrorKind::usage, "a KV cache of {} pages was asked for, at most {} are possible",
         num_pages, kMost);
  }
  return static_cast<std::size_t>(num_pages);
}

}  // namespace

KvCache::KvCache(const kernels::Context& context, const ModelConfig& config, kernels::DType operand,
                 int64_t num_pages)
    : context_(context),
      arena_("kv cache", context.table->allocator),
      holders_(checked_pages(num_pages), 0) {
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    kernels::KvPages pages{.dtype = operand,
                           .layout = context.table->weight_layout,
                           .device = context.table->device,
                           .num_pages = num_pages,
                           .num_kv_heads = config.num_key_value_heads,
                           .head_dim = config.head_dim};
    const std::size_t heads =
        static_cast<std::size_t>(num_pages * config.num_key_value_heads) * tensor::size_of(operand);
    pages.keys = arena_.bytes("keys", heads * static_cast<std::size_t>(pages.key_head_elements()));
    pages.values =
        arena_.bytes("values", heads * static_cast<std::size_t>(pages.value_head_elements()));
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
    const std::size_t element = tensor::size_of(pages.dtype);
    const auto clear = [&](void* data, int64_t begin, int64_t end) {
      kernels::zero(context_, static_cast<char*>(data) + static_cast<std::size_t>(begin) * element,
                    static_cast<std::size_t>(end - begin) * element);
    };
    clear(pages.keys, pages.key_offset(first, 0), pages.key_offset(first + count, 0));
    clear(pages.values, pages.value_offset(first, 0), pages.value_offset(first + count, 0));
  }
}

void KvCache::zero_from(int32_t page, int64_t first_place) {
  for (const kernels::KvPages& pages : layers_) {
    const std::size_t element = tensor::size_of(pages.dtype);
    const auto clear = [&](void* data, int64_t offset, int64_t count) {
      kernels::zero(context_, static_cast<char*>(data) + static_cast<std::size_t>(offset) * element,
                    static_cast<std::size_t>(count) * element);
    };
    for (int64_t head = 0; head < pages.num_kv_heads; ++head) {
      const int64_t keys = pages.key_offset(page, head);
      const int64_t values = pages.value_offset(page, head);
      if (pages.layout == kernels::WeightLayout::row_major) {
        const int64_t count = (kernels::kKeyBlock - first_place) * pages.head_dim;
        clear(pages.keys, keys + pages.key_index(first_place, 0), count);
        clear(pages.values, values + pages.value_index(first_place, 0), count);
        continue;
      }
      for (int64_t place = first_place; place < kernels::kKeyBlock; ++place) {
        for (int64_t d = 0; d < pages.head_dim; ++d) {
          clear(pages.keys, keys + pages.key_index(place, d), 1);
          clear(pages.values, values + pages.value_index(place, d), 1);
        }
      }
    }
  }
}

}  // namespace dsmoe::model

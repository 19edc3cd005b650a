// Page bookkeeping; clearing keeps the promise that unwritten positions are zero.
#include "model/kv_cache.h"

#include "kernels/table.h"

namespace dsmoe::model {

KvCache::KvCache(const kernels::Context& context, const ModelConfig& config, kernels::DType operand,
                 int64_t num_pages)
    : context_(context),
      arena_("kv cache", context.table->allocator),
      holders_(static_cast<std::size_t>(num_pages), 0) {
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
  while (static_cast<int64_t>(sequence.pages.size()) > kept) {
    release(sequence.pages.back());
    sequence.pages.pop_back();
  }
  if (length % kernels::kKeyBlock != 0)
    zero_from(sequence.pages.back(), length % kernels::kKeyBlock);
  sequence.length = length;
}

void KvCache::share(int32_t page) {
  int32_t& holders = holders_[static_cast<std::size_t>(page)];
  DSMOE_CHECK(holders > 0, "page {} is free and cannot be shared", page);
  ++holders;
}

void KvCache::release(int32_t page) {
  int32_t& holders = holders_[static_cast<std::size_t>(page)];
  DSMOE_CHECK(holders > 0, "page {} is free already", page);
  if (--holders > 0) return;
  zero_page(page);  // at once, so that free pages are always zero
  free_pages_.push_back(page);
}

void KvCache::zero_page(int32_t page) {
  for (const kernels::KvPages& pages : layers_) {
    const std::size_t element = tensor::size_of(pages.dtype);
    const auto clear = [&](void* data, int64_t offset, int64_t count) {
      kernels::zero(context_, static_cast<char*>(data) + static_cast<std::size_t>(offset) * element,
                    static_cast<std::size_t>(count) * element);
    };
    clear(pages.keys, pages.key_offset(page, 0), pages.num_kv_heads * pages.key_head_elements());
    clear(pages.values, pages.value_offset(page, 0),
          pages.num_kv_heads * pages.value_head_elements());
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

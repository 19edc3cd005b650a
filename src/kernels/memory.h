// Memory between the host and the device of a table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// The largest sizes that ops will be called with.
struct ScratchBound {
  int64_t tokens = 0;      // of a batch
  int64_t context = 0;     // of a document
  int64_t widest_row = 0;  // of any tensor but the logits
  int64_t key_width = 0;
  int64_t value_width = 0;
  int64_t experts = 0;
};

// Ordered with the ops of the same context; upload and download return when the host memory may be
// reused.
struct MemoryOps {
  void (*upload)(const Context&, const void* host, void* device, std::size_t bytes) = nullptr;
  void (*download)(const Context&, const void* device, void* host, std::size_t bytes) = nullptr;
  void (*zero)(const Context&, void* device, std::size_t bytes) = nullptr;
  // Absent where ops keep no working memory of their own.
  void (*reserve_scratch)(const Context&, const ScratchBound&) = nullptr;
};

void upload(const Context& context, const void* host, const TensorView& target);
void download(const Context& context, const TensorView& source, void* host);
void zero(const Context& context, void* data, std::size_t bytes);

// Takes the working memory that ops keep in each thread of the context's pool, so that ops within
// the bound allocate nothing. Without this call they take it when they first need it.
void reserve_scratch(const Context& context, const ScratchBound& bound);

}  // namespace dsmoe::kernels

// Memory between the host and the device of a table.
#pragma once

#include <cstddef>

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Ordered with the ops of the same context; upload and download return when the host memory may be
// reused.
struct MemoryOps {
  void (*upload)(const Context&, const void* host, void* device, std::size_t bytes) = nullptr;
  void (*download)(const Context&, const void* device, void* host, std::size_t bytes) = nullptr;
  void (*zero)(const Context&, void* device, std::size_t bytes) = nullptr;
};

void upload(const Context& context, const void* host, const TensorView& target);
void download(const Context& context, const TensorView& source, void* host);
void zero(const Context& context, void* data, std::size_t bytes);

}  // namespace dsmoe::kernels

// The CUDA tier: its table, and whether this build and this machine can run it.
#pragma once

#include <string>

#include "kernels/table.h"

namespace dsmoe::kernels {

// Empty when the table can be used; otherwise why not ("built without CUDA", "no CUDA device",
// ...).
std::string cuda_declined();

// Weights and KV pages row-major, every index tensor in device memory, no host round trip and no
// allocation inside ops: calls may be captured into a CUDA graph. (Ops of the backward pass and
// pack_weight let the stream's working memory grow when they first need more.) Throws Error(usage)
// when cuda_declined() is not empty.
const KernelTable& cuda_table();

// Kernels whose blocks wait for one another need the whole device: two side by side could each hold
// half of the multiprocessors and wait for ever. So at most one stream of a device may launch them;
// others run ops one by one, with the same bits.
enum class KernelsThatWait : uint8_t { refused, allowed };

// A stream of the current device, for Context::stream, with all that ops keep for it.
void* make_cuda_stream(KernelsThatWait waits);
// Blocks the host until the stream's work is done.
void release_cuda_stream(void* stream);
void synchronize_cuda(const Context& context);

}  // namespace dsmoe::kernels

// Host side of a kernel launch: error checks, streams, overlapping launches, tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/error.h"
#include "kernels/context.h"
#include "kernels/cuda/stream/stream.h"
#include "tensor/tensor.h"

namespace dsmoe::kernels::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    fail(status == cudaErrorMemoryAllocation ? ErrorKind::resource : ErrorKind::internal,
         "CUDA: {}: {}", what, cudaGetErrorString(status));
  }
}

// Properties of the current device, read once.
int num_multiprocessors();
int compute_capability();   // 80, 90, ...
int shared_memory_limit();  // bytes that a block can have

// Kernels for 9.0a: wgmma, bulk copies. Other devices run the portable ones.
inline bool is_hopper() { return compute_capability() == 90; }
// Launches that overlap, clusters of blocks.
inline bool has_clusters() { return compute_capability() >= 90; }

// Working memory for the ops of one stream, one op at a time: what an op leaves there the next one
// overwrites. It grows to what is asked, so that after the first step of a kind nothing is
// allocated; an op that uses it cannot be the first of its size inside a captured graph.
void* scratch_of(const Context& context, std::size_t bytes);
std::size_t scratch_bytes(const Context& context);

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;  // along x
};

// Every kernel is launched so that its first instructions overlap the end of the one before it; it
// must call wait_for_previous_kernel() before it touches memory.
template <class... Parameters, class... Arguments>
void launch(const Context& context, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream_of(context);
  config.attrs = attributes;
  config.numAttrs = has_clusters() ? (shape.cluster > 1 ? 2 : 1) : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "launch");
  ++own_stream(context).launches;
}

// Lets a kernel use more than 48 KiB of shared memory.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "raising the shared memory limit");
}
// The same where it is always as much.
template <auto kKernel>
void allow_shared_once(std::size_t bytes) {
  [[maybe_unused]] static const bool once = (allow_shared(kKernel, bytes), true);
}

// How many blocks take `size` things, `each` of them to a block.
inline unsigned blocks_for(int64_t size, int64_t each) {
  return static_cast<unsigned>((size + each - 1) / each);
}

// What wide loads and the copy engine read.
inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// A view of memory for the copy engine. sizes[0] runs fastest; strides in bytes, from dimension 1
// on. Boxes are 128 bytes wide, with their pieces of 16 permuted row by row.
struct MapShape {
  const void* base = nullptr;
  tensor::DType dtype = tensor::DType::BF16;  // or F32
  int rank = 0;
  uint64_t sizes[5] = {};
  uint64_t strides[4] = {};
  uint32_t box[5] = {};
};
CUtensorMap tensor_map(const MapShape& shape);

}  // namespace dsmoe::kernels::cuda

// Device properties and tensor maps.
#include "kernels/cuda/launch.h"

#include <map>
#include <mutex>

namespace dsmoe::kernels::cuda {

int num_multiprocessors() {
  static const int count = [] {
    int device = 0;
    int value = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
          "multiprocessor count");
    return value;
  }();
  return count;
}

int compute_capability() {
  static const int value = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "capability");
    return 10 * major + minor;
  }();
  return value;
}

uint64_t& num_launches() {
  thread_local uint64_t count = 0;
  return count;
}

namespace {

struct Scratch {
  void* data = nullptr;
  std::size_t bytes = 0;
};
std::mutex scratch_mutex;
std::map<void*, Scratch>& scratch_of_streams() {
  static std::map<void*, Scratch> map;
  return map;
}

}  // namespace

void* scratch_of(const Context& context, std::size_t bytes) {
  const std::lock_guard lock(scratch_mutex);
  Scratch& scratch = scratch_of_streams()[context.stream];
  if (scratch.bytes < bytes) {
    check(cudaStreamSynchronize(stream_of(context)), "growing working memory");
    check(cudaFree(scratch.data), "growing working memory");
    scratch = {};
    constexpr std::size_t kGrain = std::size_t{2} << 20;
    const std::size_t wanted = (bytes + kGrain - 1) / kGrain * kGrain;
    check(cudaMalloc(&scratch.data, wanted), "working memory");
    scratch.bytes = wanted;
  }
  return scratch.data;
}

std::size_t scratch_bytes(const Context& context) {
  const std::lock_guard lock(scratch_mutex);
  return scratch_of_streams()[context.stream].bytes;
}

void release_scratch(void* stream) {
  const std::lock_guard lock(scratch_mutex);
  const auto entry = scratch_of_streams().find(stream);
  if (entry == scratch_of_streams().end()) return;
  (void)cudaFree(entry->second.data);
  scratch_of_streams().erase(entry);
}

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// Through the runtime, so that nothing links against the driver library.
Encode encode_function() {
  static const Encode function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    DSMOE_CHECK(pointer != nullptr,
                "the driver has no cuTensorMapEncodeTiled; it must support CUDA 12 or later");
    return reinterpret_cast<Encode>(pointer);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const MapShape& shape) {
  CUtensorMap map{};
  const uint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult status =
      encode_function()(&map,
                        shape.dtype == tensor::DType::F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        static_cast<cuuint32_t>(shape.rank), const_cast<void*>(shape.base),
                        reinterpret_cast<const cuuint64_t*>(shape.sizes),
                        reinterpret_cast<const cuuint64_t*>(shape.strides), shape.box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DSMOE_CHECK(status == CUDA_SUCCESS,
              "tensor map of rank {} sizes {} {} {} box {} {}: CUDA driver error {}", shape.rank,
              shape.sizes[0], shape.sizes[1], shape.sizes[2], shape.box[0], shape.box[1],
              static_cast<int>(status));
  return map;
}

}  // namespace dsmoe::kernels::cuda

// Device properties, working memory and tensor maps.
#include "kernels/cuda/stream/launch.h"

#include <utility>

namespace dsmoe::kernels::cuda {

namespace {

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "attribute of the device");
  return value;
}

}  // namespace

int num_multiprocessors() {
  static const int count = attribute_of_device(cudaDevAttrMultiProcessorCount);
  return count;
}

int compute_capability() {
  static const int value = 10 * attribute_of_device(cudaDevAttrComputeCapabilityMajor) +
                           attribute_of_device(cudaDevAttrComputeCapabilityMinor);
  return value;
}

int shared_memory_limit() {
  static const int bytes = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes;
}

namespace {

struct Scratch {
  void* data = nullptr;
  std::size_t bytes = 0;

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { (void)cudaFree(data); }
};

}  // namespace

void* scratch_of(const Context& context, std::size_t bytes) {
  auto& scratch = state_of<Scratch>(context);
  if (scratch.bytes < bytes) {
    check(cudaStreamSynchronize(stream_of(context)), "growing working memory");
    check(cudaFree(std::exchange(scratch.data, nullptr)), "growing working memory");
    scratch.bytes = 0;
    constexpr std::size_t kGrain = std::size_t{2} << 20;
    const std::size_t wanted = (bytes + kGrain - 1) / kGrain * kGrain;
    check(cudaMalloc(&scratch.data, wanted), "working memory");
    scratch.bytes = wanted;
  }
  return scratch.data;
}

std::size_t scratch_bytes(const Context& context) { return state_of<Scratch>(context).bytes; }

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

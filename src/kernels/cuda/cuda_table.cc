// The table of the CUDA tier, its memory and its streams.
#include "kernels/cuda/cuda_table.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels {
namespace cuda {
namespace {

void zero(const Context& context, void* device, std::size_t bytes) {
  check(cudaMemsetAsync(device, 0, bytes, stream_of(context)), "zeroing");
}

}  // namespace

}  // namespace cuda

std::string cuda_declined() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return fmt::format("no CUDA device: {}", cudaGetErrorString(status));
  }
  if (count == 0) return "no CUDA device";
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return "the CUDA device does not answer";
  }
  return major >= 8 ? "" : fmt::format("compute capability {}.x; 8.0 or later is needed", major);
}

const KernelTable& cuda_table() {
  static const KernelTable table = [] {
    const std::string declined = cuda_declined();
    if (!declined.empty()) fail(ErrorKind::usage, "CUDA: {}", declined);
    return KernelTable{
        .name = "cuda",
        .device = Device::cuda,
        .weight_layout = WeightLayout::row_major,
        .takes_transposes = true,
        .copies_in_pass = true,
        .allocator = {cuda::allocate, cuda::release, Device::cuda},
        .memory = {cuda::upload, cuda::download, cuda::zero},
        .recording = {cuda::begin_recording, cuda::end_recording, cuda::replay_recording,
                      cuda::release_recording},
        .beside = {cuda::begin_beside, cuda::end_beside, cuda::wait_beside},
#define DSMOE_ENTRY(name, Arguments) .name = cuda::name,
        DSMOE_OPS(DSMOE_ENTRY) DSMOE_OPS_OF_MANY(DSMOE_ENTRY) DSMOE_FUSED_OPS(DSMOE_ENTRY)
            .takes_parts = cuda::takes_parts,
#undef DSMOE_ENTRY
    };
  }();
  return table;
}

void* make_cuda_stream(KernelsThatWait waits) { return cuda::make_stream(waits); }
void release_cuda_stream(void* stream) { cuda::release_stream(static_cast<cuda::Stream*>(stream)); }
void synchronize_cuda(const Context& context) {
  cuda::check(cudaStreamSynchronize(cuda::stream_of(context)), "waiting for the device");
}

}  // namespace dsmoe::kernels

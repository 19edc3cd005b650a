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
    return KernelTable{.name = "cuda",
                       .device = Device::cuda,
                       .weight_layout = WeightLayout::row_major,
                       .takes_transposes = true,
                       .copies_in_pass = true,
                       .allocator = {cuda::allocate, cuda::release, Device::cuda},
                       .memory = {cuda::upload, cuda::download, cuda::zero},
                       .recording = {cuda::begin_recording, cuda::end_recording,
                                     cuda::replay_recording, cuda::release_recording},
                       .beside = {cuda::begin_beside, cuda::end_beside, cuda::wait_beside},
                       .pack_weight = cuda::pack_weight,
                       .embedding_forward = cuda::embedding_forward,
                       .rms_norm_forward = cuda::rms_norm_forward,
                       .matmul_forward = cuda::matmul_forward,
                       .rope_forward = cuda::rope_forward,
                       .attention_forward = cuda::attention_forward,
                       .router_forward = cuda::router_forward,
                       .plan_build = cuda::plan_build,
                       .experts_up_forward = cuda::experts_up_forward,
                       .experts_down_forward = cuda::experts_down_forward,
                       .combine_forward = cuda::combine_forward,
                       .log_prob_forward = cuda::log_prob_forward,
                       .argmax_forward = cuda::argmax_forward,
                       .sample_forward = cuda::sample_forward,
                       .few_tokens_qkv = cuda::few_tokens_qkv,
                       .few_tokens_ffn = cuda::few_tokens_ffn,
                       .few_tokens_head = cuda::few_tokens_head,
                       .experts_forward = cuda::experts_forward,
                       .qkv_forward = cuda::qkv_forward,
                       .dispatch_gates = cuda::dispatch_gates,
                       .dispatch_rows = cuda::dispatch_rows,
                       .combine_backward = cuda::combine_backward,
                       .takes_parts = cuda::takes_parts,
                       .weight_gradient = cuda::weight_gradient,
                       .bias_gradient = cuda::bias_gradient,
                       .round_values = cuda::round_values,
                       .experts_down_backward = cuda::experts_down_backward,
                       .experts_up_backward = cuda::experts_up_backward,
                       .router_backward = cuda::router_backward,
                       .rms_norm_backward = cuda::rms_norm_backward,
                       .rope_backward = cuda::rope_backward,
                       .attention_backward = cuda::attention_backward,
                       .embedding_backward = cuda::embedding_backward,
                       .cross_entropy_backward = cuda::cross_entropy_backward,
                       .balance_loss = cuda::balance_loss,
                       .router_z_loss = cuda::router_z_loss,
                       .sum_of_squares = cuda::sum_of_squares,
                       .adamw_step = cuda::adamw_step,
                       .weight_gradients = cuda::weight_gradients,
                       .gradient_square_sums = cuda::gradient_square_sums,
                       .optimizer_step = cuda::optimizer_step};
  }();
  return table;
}

void* make_cuda_stream(KernelsThatWait waits) { return cuda::make_stream(waits); }
void release_cuda_stream(void* stream) { cuda::release_stream(static_cast<cuda::Stream*>(stream)); }
void synchronize_cuda(const Context& context) {
  cuda::check(cudaStreamSynchronize(cuda::stream_of(context)), "waiting for the device");
}

}  // namespace dsmoe::kernels

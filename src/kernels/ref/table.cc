// The reference table.
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels {
namespace {

void copy(const Context&, const void* source, void* target, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void fill_zero(const Context& context, void* data, std::size_t bytes) {
  constexpr int64_t kGrain = 1 << 18;
  parallel_for(*context.pool, static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(data) + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace

const KernelTable& ref_table() {
  static const KernelTable table{
      .name = "ref",
      .device = Device::cpu,
      .weight_layout = WeightLayout::panels,
      .allocator = tensor::Arena::host_allocator(),
      .memory = {.upload = copy, .download = copy, .zero = fill_zero},
      .pack_weight = ref::pack_weight,
      .embedding_forward = ref::embedding_forward,
      .rms_norm_forward = ref::rms_norm_forward,
      .matmul_forward = ref::matmul_forward,
      .rope_forward = ref::rope_forward,
      .attention_forward = ref::attention_forward,
      .router_forward = ref::router_forward,
      .plan_build = ref::plan_build,
      .experts_up_forward = ref::experts_up_forward,
      .experts_down_forward = ref::experts_down_forward,
      .combine_forward = ref::combine_forward,
      .log_prob_forward = ref::log_prob_forward,
      .argmax_forward = ref::argmax_forward,
      .sample_forward = ref::sample_forward,
      .dispatch_gates = ref::dispatch_gates,
      .weight_gradient = ref::weight_gradient,
      .bias_gradient = ref::bias_gradient,
      .round_values = ref::round_values,
      .experts_down_backward = ref::experts_down_backward,
      .experts_up_backward = ref::experts_up_backward,
      .router_backward = ref::router_backward,
      .rms_norm_backward = ref::rms_norm_backward,
      .rope_backward = ref::rope_backward,
      .attention_backward = ref::attention_backward,
      .embedding_backward = ref::embedding_backward,
      .cross_entropy_backward = ref::cross_entropy_backward,
      .balance_loss = ref::balance_loss,
      .router_z_loss = ref::router_z_loss,
      .sum_of_squares = ref::sum_of_squares,
      .adamw_step = ref::adamw_step,
  };
  return table;
}

}  // namespace dsmoe::kernels

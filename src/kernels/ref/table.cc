// The reference table.
#include <cstring>

#include "kernels/ref/ref.h"

namespace dsmoe::kernels {
namespace {

void copy(const Context&, const void* source, void* target, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void fill_zero(const Context&, void* data, std::size_t bytes) { std::memset(data, 0, bytes); }

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
  };
  return table;
}

}  // namespace dsmoe::kernels

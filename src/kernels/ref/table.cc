// The reference table.
#include "kernels/ref/ref.h"

namespace dsmoe::kernels {

const KernelTable& ref_table() {
  static constexpr KernelTable table{
      .name = "ref",
      .device = Device::cpu,
      .weight_layout = WeightLayout::panels,
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

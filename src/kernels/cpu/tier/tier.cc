// The tier's table.
#include "kernels/cpu/tier/leaves.h"

namespace dsmoe::kernels::DSMOE_TIER {

constinit const cpu::Tier kTier {
  .product = product, .attend = attend, .rms_norm = rms_norm, .rotate = rotate, .combine = combine,
  .pack = pack, .pack_columns = pack_columns,
#if defined(__AVX512F__)
  .pack_groups = pack_groups,
#endif
  .widen = widen, .round = round, .softmax = softmax, .sigmoid = sigmoid,
  .max_and_sum = max_and_sum, .index_of_max = index_of_max, .gather_panels = gather_panels,
  .gather_transposed = gather_transposed, .swiglu_backward = swiglu_backward,
  .rms_norm_backward = rms_norm_backward, .rms_norm_weight = rms_norm_weight,
  .attend_backward = attend_backward, .cross_entropy = cross_entropy, .adamw = adamw,
  .sum_of_squares = sum_of_squares,
};

}  // namespace dsmoe::kernels::DSMOE_TIER

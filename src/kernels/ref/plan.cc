// A counting sort of (expert, token) pairs: tokens are visited ascending, so rows come out sorted.
#include <algorithm>

#include "kernels/ref/ref.h"

namespace dsmoe::kernels::ref {

void plan_build(const Context&, const PlanBuild& args) {
  const int64_t tokens = args.index.dim(0);
  const int64_t top_k = args.index.dim(1);
  const int64_t experts = args.plan.expert_offsets.dim(0) - 1;
  const int64_t sequences = args.sequence_starts.dim(0) - 1;
  const int32_t* index = args.index.as<int32_t>();
  const int32_t* starts = args.sequence_starts.as<int32_t>();
  int32_t* offsets = args.plan.expert_offsets.as<int32_t>();
  int32_t* sequence_offsets = args.plan.sequence_offsets.as<int32_t>();

  std::fill_n(offsets, experts + 1, 0);
  for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
    if (index[slot] >= 0) ++offsets[index[slot] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];

  // The last column of sequence_offsets is where each expert's next row goes: the end, once all
  // have gone.
  const auto next = [&](int64_t e) -> int32_t& {
    return sequence_offsets[e * (sequences + 1) + sequences];
  };
  for (int64_t e = 0; e < experts; ++e) next(e) = offsets[e];
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t e = 0; e < experts; ++e) sequence_offsets[e * (sequences + 1) + s] = next(e);
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
      for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
        const int32_t row = index[slot] < 0 ? -1 : next(index[slot])++;
        args.plan.row_of_slot.as<int32_t>()[slot] = row;
        if (row >= 0) args.plan.token_of_row.as<int32_t>()[row] = static_cast<int32_t>(t);
      }
    }
  }
}

}  // namespace dsmoe::kernels::ref

// Checkpoint tensors to panels: the frequent types by the tier, the rare ones by the reference.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::cpu {

void pack_weight(const Tier& tier, const Context& context, const PackWeight& args) {
  const WeightStack& target = args.target;
  const DType source_type = args.source.dtype;
  const bool covered = (source_type == DType::BF16 || source_type == DType::F32) &&
                       (target.dtype == DType::BF16 || target.dtype == DType::F32) &&
                       target.layout == WeightLayout::panels;
  if (!covered) return ref::pack_weight(context, args);
  const int64_t row_end = args.row_begin + args.source.dim(0);
  const int64_t first_panel = args.row_begin / kPanelWidth;
  const int64_t num_panels = round_up(row_end, kPanelWidth) / kPanelWidth - first_panel;
  const int64_t source_row = target.k * static_cast<int64_t>(tensor::size_of(source_type));
  const int64_t panel_bytes = kPanelWidth * panel_depth(target.dtype, target.k) *
                              static_cast<int64_t>(tensor::size_of(target.dtype));
  parallel_for(
      *context.pool, args.source.dim(0) > 0 ? num_panels : 0, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
          const int64_t row = panel * kPanelWidth;
          const int64_t first = std::max(args.row_begin, row);
          tier.pack(
              {.source = static_cast<const char*>(args.source.data) +
                         (first - args.row_begin) * source_row,
               .source_type = element_of(source_type),
               .target_type = element_of(target.dtype),
               .k = target.k,
               .lane_begin = static_cast<int>(first - row),
               .lane_end = static_cast<int>(std::min(row_end - row, kPanelWidth)),
               .panel = static_cast<char*>(target.matrix(args.matrix_idx)) + panel * panel_bytes});
        }
      });
}

}  // namespace dsmoe::kernels::cpu

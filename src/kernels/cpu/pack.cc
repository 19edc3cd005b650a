// Checkpoint tensors to panels: the frequent types by the tier, the rare ones by the reference.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::cpu {
namespace {

char* panel_of(const PackWeight& args, int64_t panel) {
  return static_cast<char*>(args.target.matrix(args.matrix_idx)) +
         panel * panel_bytes(args.target.dtype, args.target.coding, args.target.k);
}

const char* source_at(const PackWeight& args, int64_t row, int64_t column) {
  const int64_t idx = row * args.source.dim(1) + column;
  return static_cast<const char*>(args.source.data) +
         idx * static_cast<int64_t>(tensor::size_of(args.source.dtype));
}

void pack_as_stored(const Tier& tier, const PackWeight& args, int64_t panel) {
  const int64_t row_end = args.row_begin + args.source.dim(0);
  const int64_t row = panel * kPanelWidth;
  const int64_t first = std::max(args.row_begin, row);
  tier.pack({.source = source_at(args, first - args.row_begin, 0),
             .source_type = element_of(args.source.dtype),
             .target_type = element_of(args.target.dtype),
             .k = args.target.k,
             .lane_begin = static_cast<int>(first - row),
             .lane_end = static_cast<int>(std::min(row_end - row, kPanelWidth)),
             .panel = panel_of(args, panel)});
}

void pack_transposed(const Tier& tier, const PackWeight& args, int64_t panel) {
  const int64_t column = panel * kPanelWidth;
  tier.pack_columns(
      {.source = source_at(args, 0, column),
       .source_stride = args.source.dim(1),
       .rows = args.source.dim(0),
       .k_begin = args.row_begin,
       .columns = static_cast<int>(std::min(args.source.dim(1) - column, kPanelWidth)),
       .source_type = element_of(args.source.dtype),
       .target_type = element_of(args.target.dtype),
       .panel = panel_of(args, panel)});
}

// Rows [begin, end) of the source: whole panels by the tier, borders by the reference.
void pack_integer_rows(const Tier& tier, const Context& context, const PackWeight& args,
                       int64_t begin, int64_t end) {
  const WeightCoding coding = args.target.coding;
  const int64_t groups = args.scale.dim(1);
  const bool whole_groups =
      args.source.dim(1) == groups * tensor::coded_row_bytes(coding, tensor::kGroupSize);
  for (int64_t row = begin; row < end;) {
    const int64_t n = args.row_begin + row;
    const int64_t next = std::min(end, row + kPanelWidth - n % kPanelWidth);
    PackWeight part = args;
    part.source = args.source.rows(row, next);
    part.scale = args.scale.rows(row, next);
    part.row_begin = n;
    if (tier.pack_groups != nullptr && whole_groups && next - row == kPanelWidth) {
      tier.pack_groups({.coding = coding_of(coding),
                        .integers = part.source.data,
                        .scales = part.scale.data,
                        .groups = groups,
                        .panel = panel_of(args, n / kPanelWidth)});
    } else {
      ref::pack_weight(context, part);
    }
    row = next;
  }
}

void pack_integers(const Tier& tier, const Context& context, const PackWeight& args) {
  parallel_for(*context.pool, args.source.dim(0), kPanelWidth, [&](int64_t begin, int64_t end) {
    pack_integer_rows(tier, context, args, begin, end);
  });
}

}  // namespace

void pack_weight(const Tier& tier, const Context& context, const PackWeight& args) {
  if (args.target.coding != WeightCoding::plain) return pack_integers(tier, context, args);
  const auto covered = [](DType dtype) { return dtype == DType::BF16 || dtype == DType::F32; };
  if (!covered(args.source.dtype) || !covered(args.target.dtype) ||
      args.target.layout != WeightLayout::panels) {
    return ref::pack_weight(context, args);
  }
  if (args.source.num_elements() == 0) return;
  const bool transposed = args.order == PackOrder::transposed;
  const int64_t first_row = transposed ? 0 : args.row_begin;
  const int64_t last_row = transposed ? args.source.dim(1) : args.row_begin + args.source.dim(0);
  const int64_t first_panel = first_row / kPanelWidth;
  const int64_t num_panels = round_up(last_row, kPanelWidth) / kPanelWidth - first_panel;
  parallel_for(*context.pool, num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      (transposed ? pack_transposed : pack_as_stored)(tier, args, panel);
    }
  });
}

}  // namespace dsmoe::kernels::cpu

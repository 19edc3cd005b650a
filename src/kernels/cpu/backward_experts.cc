// Experts on the way back: a thread takes some rows of an expert through all of its products.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/products.h"

namespace dsmoe::kernels::cpu {
namespace {

// Rows of one unit of work: as many as share the reading of the weights, fewer where threads would
// have less than a few units each.
constexpr int64_t kMostPartRows = 192;
constexpr int64_t kFewestPartRows = 96;
constexpr int64_t kPartsPerThread = 8;
constexpr double kWeightRows = 8;       // reading the weights costs as much as this many rows
constexpr double kWorthWaking = 300e3;  // multiplications one thread does meanwhile

struct ExpertRows {
  int64_t expert;
  int64_t begin;
  int64_t end;
};

int64_t rows_of_part(const Context& context, std::span<const ExpertFamilyBackward> families) {
  int64_t rows = 0;
  for (const ExpertFamilyBackward& family : families)
    rows += family.offsets.as<int32_t>()[family.offsets.dim(0) - 1];
  return std::clamp(rows / (context.pool->num_threads() * kPartsPerThread), kFewestPartRows,
                    kMostPartRows);
}

template <class Visit>
void for_each_part(const ExpertFamilyBackward& family, int64_t part_rows, Visit&& visit) {
  const int32_t* offsets = family.offsets.as<int32_t>();
  for (int64_t expert = 0; expert + 1 < family.offsets.dim(0); ++expert) {
    const int64_t rows = offsets[expert + 1] - offsets[expert];
    const int64_t parts = (rows + part_rows - 1) / part_rows;
    for (int64_t part = 0; part < parts; ++part) {
      visit(ExpertRows{expert, offsets[expert] + rows * part / parts,
                       offsets[expert] + rows * (part + 1) / parts});
    }
  }
}

// work(family, rows) for all rows of all families, in one parallel region.
template <class Work>
void run_rows(const Context& context, std::span<const ExpertFamilyBackward> families, Work&& work) {
  const auto cost = [](const ExpertFamilyBackward& family, const ExpertRows& rows) {
    const WeightStack& weight = family.down_transposed.stack;
    return (static_cast<double>(rows.end - rows.begin) + kWeightRows) *
           static_cast<double>(weight.n * weight.k + 1);
  };
  const int64_t part_rows = rows_of_part(context, families);
  double total = 0;
  for (const ExpertFamilyBackward& family : families)
    for_each_part(family, part_rows, [&](const ExpertRows& rows) { total += cost(family, rows); });
  run_shares(context, total, kWorthWaking, [&](Share& share) {
    for (const ExpertFamilyBackward& family : families) {
      for_each_part(family, part_rows, [&](const ExpertRows& rows) {
        const Range mine = share.take(1, cost(family, rows));
        if (mine.begin < mine.end) work(family, rows);
      });
    }
  });
}

char* row_at(const TensorView& view, int64_t row) {
  return static_cast<char*>(view.data) +
         row * view.dim(1) * static_cast<int64_t>(tensor::size_of(view.dtype));
}

// All panels of the expert's matrix times the rows, out to `sums` [rows, n].
ProductBlock product_of(const WeightStack& weight, const ExpertRows& rows, float* scratch,
                        float* sums) {
  ProductBlock block = block_of(weight, rows.expert);
  block.x_type = block.weight_type;
  block.x_stride = weight.k;
  block.row_end = rows.end - rows.begin;
  block.out = sums;
  block.out_stride = weight.n;
  block.scratch = scratch;
  return block;
}

void down_rows(const Tier& tier, const ExpertFamilyBackward& family, const ExpertRows& rows) {
  const int64_t width = family.down_transposed.stack.n;
  float* scratch = thread_scratch(experts_backward_scratch(width));
  float* a = scratch + kProductScratch;
  ProductBlock block = product_of(family.down_transposed.stack, rows, scratch, a);
  if (const int32_t* index = family.d_out.indices()) {
    block.x = family.d_out.x.data;
    block.row_index = index + rows.begin;
  } else {
    block.x = row_at(family.d_out.x, rows.begin);
  }
  tier.product(block);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    SwigluBackwardRow one{.type = block.weight_type,
                          .size = width,
                          .a = a + (row - rows.begin) * width,
                          .gate_product = row_at(family.gate_product, row),
                          .up_product = row_at(family.up_product, row),
                          .d_gate_product = row_at(family.d_gate_product, row),
                          .d_up_product = row_at(family.d_up_product, row)};
    if (family.gate_of_row) {
      one.activation = row_at(family.activation, row);
      one.gate = family.gate_of_row.as<float>() + row;
      one.d_gate = family.d_gate_of_row.as<float>() + row;
      one.scaled_activation = row_at(family.scaled_activation, row);
    }
    tier.swiglu_backward(one);
  }
}

void up_rows(const Tier& tier, const ExpertFamilyBackward& family, const ExpertRows& rows) {
  const int64_t hidden = family.gate_transposed.stack.n;
  float* scratch = thread_scratch(experts_backward_scratch(hidden));
  float* sums = scratch + kProductScratch;
  ProductBlock gate = product_of(family.gate_transposed.stack, rows, scratch, sums);
  gate.x = row_at(family.d_gate_product, rows.begin);
  tier.product(gate);
  ProductBlock up = product_of(family.up_transposed.stack, rows, scratch, sums);
  up.x = row_at(family.d_up_product, rows.begin);
  up.start = sums;
  up.out = row_at(family.d_x, rows.begin);
  up.epilogue = Epilogue::round;
  tier.product(up);
}

}  // namespace

int64_t experts_backward_scratch(int64_t width) { return kProductScratch + kMostPartRows * width; }

void experts_down_backward(const Tier& tier, const Context& context,
                           const ExpertsDownBackward& args) {
  run_rows(context, args.families, [&](const ExpertFamilyBackward& family, const ExpertRows& rows) {
    down_rows(tier, family, rows);
  });
}

void experts_up_backward(const Tier& tier, const Context& context, const ExpertsUpBackward& args) {
  run_rows(context, args.families, [&](const ExpertFamilyBackward& family, const ExpertRows& rows) {
    up_rows(tier, family, rows);
  });
}

}  // namespace dsmoe::kernels::cpu

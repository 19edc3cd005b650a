// Weight gradients: products over the rows of sequences that continue the sums in the gradient.
#include <algorithm>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {
namespace {

constexpr int64_t kDepth = 512;  // rows of one product: whole blocks and segments of either rule
constexpr int64_t kSplitOutputs = 48;      // outputs of one unit of work
constexpr int64_t kOutputsPerBlock = 192;  // outputs whose gradients are transposed at a time
constexpr int64_t kRowBlock = 32;          // the bf16 rule pads to it at the end of a sequence
constexpr double kWorthWaking = 300e3;     // multiplications one thread does meanwhile

int64_t panels_of(int64_t inputs) { return round_up(inputs, kPanelWidth) * kDepth; }

// The next rows that one product takes.
struct Rows {
  int32_t dy[kDepth];
  int32_t x[kDepth];
  int64_t depth = 0;  // padded to 32
  int64_t k = 0;      // what the product is told: padding is part of it in the bf16 rule only
};

class MatrixGradient {
 public:
  MatrixGradient(const Tier& tier, const WeightGradient& args, int64_t matrix_idx)
      : tier_(tier),
        args_(args),
        sequences_(args.sequence_offsets.dim(1) - 1),
        offsets_(args.sequence_offsets.as<int32_t>() + matrix_idx * (sequences_ + 1)),
        slot_(args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>()[matrix_idx] : matrix_idx),
        size_n_(args.d_weight.dim(1)),
        size_k_(args.d_weight.dim(2)),
        rule_(element_of(args.dy.x.dtype)) {}

  bool has_rows() const { return slot_ >= 0 && offsets_[sequences_] > offsets_[0]; }
  int64_t units() const { return (size_n_ + kSplitOutputs - 1) / kSplitOutputs; }
  double unit_cost() const {
    return static_cast<double>(kSplitOutputs * size_k_) *
           static_cast<double>(offsets_[sequences_] - offsets_[0] + kRowBlock);
  }

  // What is left to do where there are no rows.
  void start() const {
    if (slot_ >= 0 && args_.start == GradientStart::from_zero)
      std::fill_n(outputs_from(0), size_n_ * size_k_, 0.0f);
  }

  void add(Range units) const {
    const Range outputs{units.begin * kSplitOutputs, std::min(size_n_, units.end * kSplitOutputs)};
    float* scratch = thread_scratch(weight_gradient_scratch(size_k_));
    float* panels = scratch + kProductScratch;
    float* transposed = panels + panels_of(size_k_);
    Rows rows;
    int64_t sequence = 0;
    int64_t row = offsets_[0];
    bool from_zero = args_.start == GradientStart::from_zero;
    for (; next_rows(sequence, row, rows); from_zero = false) {
      tier_.gather_panels({.source = args_.x.x.data,
                           .stride = size_k_,
                           .source_type = element_of(args_.x.x.dtype),
                           .target_type = rule_,
                           .row_of_k = rows.x,
                           .depth = rows.depth,
                           .column_end = size_k_,
                           .out = panels});
      for (int64_t n = outputs.begin; n < outputs.end; n += kOutputsPerBlock) {
        multiply(rows, {n, std::min(outputs.end, n + kOutputsPerBlock)}, from_zero, panels,
                 transposed, scratch);
      }
    }
  }

 private:
  // Fills `rows` from (sequence, row) on and moves both; false when no row is left. The bf16 rule
  // is a chain of blocks, so several sequences join one product; the fp32 rule restarts.
  bool next_rows(int64_t& sequence, int64_t& row, Rows& rows) const {
    const int32_t* dy_of_row = args_.dy.indices();
    const int32_t* x_of_row = args_.x.indices();
    rows.depth = 0;
    while (sequence < sequences_ && rows.depth < kDepth) {
      for (; row < offsets_[sequence + 1] && rows.depth < kDepth; ++row, ++rows.depth) {
        rows.dy[rows.depth] = dy_of_row != nullptr ? dy_of_row[row] : static_cast<int32_t>(row);
        rows.x[rows.depth] = x_of_row != nullptr ? x_of_row[row] : static_cast<int32_t>(row);
      }
      if (row == offsets_[sequence + 1]) ++sequence;
      rows.k = rows.depth;
      for (; rows.depth % kRowBlock != 0; ++rows.depth)
        rows.dy[rows.depth] = rows.x[rows.depth] = -1;
      if (rule_ == Element::f32 && rows.k > 0) break;
    }
    if (rule_ == Element::bf16) rows.k = rows.depth;
    return rows.depth > 0;
  }

  float* outputs_from(int64_t n) const {
    return args_.d_weight.as<float>() + (slot_ * size_n_ + n) * size_k_;
  }

  void multiply(const Rows& rows, Range outputs, bool from_zero, const float* panels,
                float* transposed, float* scratch) const {
    const bool tiles = tier_.tile_operands && rule_ == Element::bf16;
    tier_.gather_transposed({.source = args_.dy.x.data,
                             .stride = size_n_,
                             .source_type = rule_,
                             .target_type = rule_,
                             .row_of_k = rows.dy,
                             .depth = rows.depth,
                             .column_begin = outputs.begin,
                             .column_end = outputs.end,
                             .out = transposed,
                             .tiles = tiles});
    float* out = outputs_from(outputs.begin);
    ProductBlock block;
    block.x = transposed;
    block.x_stride = rows.depth;
    block.x_tiles = tiles;
    block.row_end = outputs.end - outputs.begin;
    block.x_type = rule_;
    block.weight_type = rule_;
    block.weight[0] = panels;
    block.k = rows.k;
    block.panel_bytes = kPanelWidth * rows.depth * (rule_ == Element::bf16 ? 2 : 4);
    block.panel_end = round_up(size_k_, kPanelWidth) / kPanelWidth;
    block.n = size_k_;
    block.start = from_zero ? nullptr : out;
    block.out = out;
    block.out_stride = size_k_;
    block.scratch = scratch;
    tier_.product(block);
  }

  const Tier& tier_;
  const WeightGradient& args_;
  int64_t sequences_;
  const int32_t* offsets_;
  int64_t slot_;
  int64_t size_n_;
  int64_t size_k_;
  Element rule_;
};

}  // namespace

int64_t weight_gradient_scratch(int64_t inputs) {
  return kProductScratch + panels_of(inputs) + kOutputsPerBlock * kDepth;
}

void weight_gradient(const Tier& tier, const Context& context, const WeightGradient& args) {
  const int64_t matrices = args.sequence_offsets.dim(0);
  if (args.d_weight.dim(1) == 0 || args.d_weight.dim(2) == 0) return;
  double total = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    const MatrixGradient gradient(tier, args, m);
    if (gradient.has_rows()) {
      total += static_cast<double>(gradient.units()) * gradient.unit_cost();
    } else {
      gradient.start();
    }
  }
  if (total == 0) return;
  const auto task = [&](int thread_idx, int num_threads) {
    Share share(total, thread_idx, num_threads, num_threads);
    for (int64_t m = 0; m < matrices; ++m) {
      const MatrixGradient gradient(tier, args, m);
      if (!gradient.has_rows()) continue;
      const Range mine = share.take(gradient.units(), gradient.unit_cost());
      if (mine.begin < mine.end) gradient.add(mine);
    }
  };
  if (total < kWorthWaking) {
    task(0, 1);
  } else {
    context.pool->run(task);
  }
}

}  // namespace dsmoe::kernels::cpu

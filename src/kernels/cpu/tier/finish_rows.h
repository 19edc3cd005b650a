// What becomes of the sums of one or two panels, a row at a time: beside the products of the panels
// behind them, which leave one of the two vector units idle.
#pragma once

#include "kernels/cpu/tier/chunk.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

class FinishRows {
 public:
  FinishRows() = default;  // nothing to do
  // sums: of both panels, [rows][16]; the second null where there is one panel.
  FinishRows(const ProductBlock& args, const Chunk& chunk, const int64_t (&panels)[2],
             const float* const (&sums)[2])
      : args_(&args), sums_{sums[0], sums[1]}, row_begin_(chunk.row_begin), rows_(chunk.rows) {
    for (int i = 0; i < 2; ++i) {
      column_[i] = panels[i] * 16;
      columns_[i] = smaller(16, args.n - column_[i]);
    }
  }

  // All rows are to be done within so many steps, a row at most in each.
  void spread_over(int64_t steps) { steps_ = steps; }
  DSMOE_HD void step() {
    due_ += rows_;
    if (due_ < steps_ || next_ == rows_) return;
    due_ -= steps_;
    finish(next_++);
  }
  void rest() {
    for (; next_ < rows_; ++next_) finish(next_);
  }

 private:
  // A call of its own: inside a loop of tile instructions it would be there once for each of its
  // variants.
  __attribute__((noinline)) void finish(int64_t row) const {
    const int64_t place = (row_begin_ + row) * args_->out_stride;
    const F32x16 first = load(sums_[0] + row * 16);
    if (args_->epilogue == Epilogue::swiglu) {
      return store_swiglu(*args_, place + column_[0], columns_[0], first,
                          load(sums_[1] + row * 16));
    }
    put(place, 0, first);
    if (sums_[1] != nullptr) put(place, 1, load(sums_[1] + row * 16));
  }
  DSMOE_HD void put(int64_t place, int panel, F32x16 value) const {
    if (args_->epilogue == Epilogue::round) {
      store_element(*args_, args_->out, place + column_[panel], columns_[panel], value);
    } else {
      store_float(*args_, place + column_[panel], column_[panel], columns_[panel], value);
    }
  }

  const ProductBlock* args_ = nullptr;
  const float* sums_[2] = {};
  int64_t row_begin_ = 0;
  int64_t rows_ = 0;
  int64_t next_ = 0;
  int64_t steps_ = 1;
  int64_t due_ = 0;
  int64_t column_[2] = {};
  int64_t columns_[2] = {};
};

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

// Attention of up to kAttendRows queries that share a KV head: each row follows the block and span
// rule by itself. How rows meet keys and values is the products' matter.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::AttendBlock;
using cpu::Element;
using cpu::kAttendRows;
using cpu::kAttentionKeys;
using cpu::kSpanBlocks;

constexpr int kKeyPanels = kAttentionKeys / 16;

// Softmax state of one row: of the span in progress and of the spans before it.
struct RowState {
  float max;
  float sum;
  float total_max;
  float total_sum;
};

// Views into the scratch memory. Tiles are [panels of 16][tile_rows][16], as products keep
// accumulators.
struct Work {
  int64_t rows;
  int64_t tile_rows;  // rows, or more of them as padding
  int64_t dim_panels;
  float* query;    // operand rows
  float* scores;   // tiles over the keys of a block
  float* weights;  // operand rows: softmax numerators
  float* span;     // tiles over a value
  float* total;    // tiles over a value
  RowState state[kAttendRows];

  Work(const AttendBlock& args, int64_t row_unit)
      : rows(args.num_rows),
        tile_rows((args.num_rows + row_unit - 1) / row_unit * row_unit),
        dim_panels((args.value_width + 15) / 16),
        query(args.scratch),
        scores(query + kAttendRows * cpu::padded_width(args.key_width)),
        weights(scores + kAttendRows * kAttentionKeys),
        span(weights + kAttendRows * kAttentionKeys),
        total(span + kAttendRows * cpu::padded_width(args.value_width)) {}

  // Where element 0 of row r lies in a tile of panel p.
  float* place(float* tiles, int64_t p, int64_t r) const {
    return tiles + (p * tile_rows + r) * 16;
  }
  void start_span(int64_t r) {
    state[r].max = -__builtin_inff();
    state[r].sum = 0;
    for (int64_t p = 0; p < dim_panels; ++p) store(place(span, p, r), zero());
  }
};

// The softmax step of one row over one block: scores become numerators, the span's statistics and
// outputs move on.
template <class Products>
void softmax_step(const Products& products, Work& work, int64_t r, int64_t keys_seen, float scale) {
  RowState& state = work.state[r];
  F32x16 s[kKeyPanels];
  F32x16 largest = broadcast(-__builtin_inff());
  for (int p = 0; p < kKeyPanels; ++p) {
    s[p] = mul(load(work.place(work.scores, p, r)), broadcast(scale));
    const int64_t seen = keys_seen - 16 * p;
    if (seen >= 16) {
      largest = max(s[p], largest);
    } else if (seen > 0) {
      largest = first_lanes(seen, max(s[p], largest), largest);
    }
  }
  const float block_max = join_max(largest);
  const float new_max = state.max > block_max ? state.max : block_max;
  const F32x16 correction = exp(broadcast(state.max - new_max));
  F32x16 sum = zero();
  for (int p = 0; p < kKeyPanels; ++p) {
    const int64_t seen = keys_seen - 16 * p;
    s[p] = seen > 0 ? exp(sub(s[p], broadcast(new_max))) : zero();
    if (seen > 0 && seen < 16) s[p] = first_lanes(seen, s[p], zero());
    sum = add(sum, s[p]);
    if constexpr (Products::kType == Element::bf16) s[p] = round_bf16(s[p]);
  }
  products.put_weights(r, s);
  store_first(&state.sum, fma(broadcast(state.sum), correction, broadcast(join_sum(sum))), 1);
  state.max = new_max;
  for (int64_t p = 0; p < work.dim_panels; ++p) {
    float* o = work.place(work.span, p, r);
    store(o, mul(load(o), correction));
  }
}

// The finished span joins the spans before it: x = fma(x1, c1, x2 * c2).
void merge_span(Work& work, int64_t r, bool first_span) {
  RowState& state = work.state[r];
  if (first_span) {
    state.total_max = state.max;
    state.total_sum = state.sum;
    for (int64_t p = 0; p < work.dim_panels; ++p)
      store(work.place(work.total, p, r), load(work.place(work.span, p, r)));
    return;
  }
  const float max = state.total_max > state.max ? state.total_max : state.max;
  const F32x16 c1 = exp(broadcast(state.total_max - max));
  const F32x16 c2 = exp(broadcast(state.max - max));
  store_first(&state.total_sum, fma(broadcast(state.total_sum), c1, mul(broadcast(state.sum), c2)),
              1);
  state.total_max = max;
  for (int64_t p = 0; p < work.dim_panels; ++p) {
    float* total = work.place(work.total, p, r);
    store(total, fma(load(total), c1, mul(load(work.place(work.span, p, r)), c2)));
  }
}

template <Element type>
void write_row(const AttendBlock& args, const Work& work, int64_t r) {
  const F32x16 sum = broadcast(work.state[r].total_sum);
  for (int64_t p = 0; p < work.dim_panels; ++p) {
    const F32x16 value = div(load(work.place(work.total, p, r)), sum);
    const int64_t left = args.value_width - p * 16;
    const int64_t count = left < 16 ? left : 16;
    const int64_t place = args.rows[r] * args.value_width + p * 16;
    if constexpr (type == Element::bf16) {
      store_first_bf16(static_cast<uint16_t*>(args.out) + place, value, count);
    } else {
      store_first(static_cast<float*>(args.out) + place, value, count);
    }
  }
}

// Products: kType; kRowUnit; products(args, work) takes the queries; multiply_keys and
// multiply_values of a page write scores and add to the span, of at least the first `seen` keys;
// put_weights(r, s) takes the numerators of row r.
template <class Products>
void attend_rows(const AttendBlock& args) {
  Work work(args, Products::kRowUnit);
  const Products products(args, work);
  int64_t last_key = 0;
  for (int64_t r = 0; r < work.rows; ++r)
    last_key = args.num_keys[r] > last_key ? args.num_keys[r] : last_key;
  for (int64_t r = 0; r < work.tile_rows; ++r) work.start_span(r);
  for (int64_t key = 0; key < last_key; key += kAttentionKeys) {
    const int64_t block = key / kAttentionKeys;
    const int64_t page = args.pages[block];
    const int64_t seen_here = last_key - key < kAttentionKeys ? last_key - key : kAttentionKeys;
    products.multiply_keys(static_cast<const char*>(args.keys) + page * args.key_page_bytes,
                           seen_here);
    // A row past its last key goes on computing values that nobody reads: its output is already
    // written.
    for (int64_t r = 0; r < work.rows; ++r) {
      const int64_t seen = args.num_keys[r] - key;
      if (seen > 0) {
        softmax_step(products, work, r, seen < kAttentionKeys ? seen : kAttentionKeys, args.scale);
      }
    }
    products.multiply_values(static_cast<const char*>(args.values) + page * args.value_page_bytes,
                             seen_here);
    for (int64_t r = 0; r < work.rows; ++r) {
      const int64_t left = args.num_keys[r] - key;
      const bool last = left > 0 && left <= kAttentionKeys;
      if (!last && !(left > 0 && block % kSpanBlocks == kSpanBlocks - 1)) continue;
      merge_span(work, r, block < kSpanBlocks);
      if (last) write_row<Products::kType>(args, work, r);
      work.start_span(r);
    }
  }
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

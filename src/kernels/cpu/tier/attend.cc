// Attention of up to kAttendRows queries that share a KV head: each row follows the block and span
// rule by itself.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::AttendBlock;
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

// Views into the scratch memory. Tiles are [panels of 16][rows][16], as the micro-kernel keeps
// accumulators.
struct Work {
  int64_t rows;
  int64_t dim_panels;
  RowBlocks blocks;
  float* query;    // widened rows
  float* scores;   // tiles over the keys of a block
  float* weights;  // widened rows: softmax numerators
  float* span;     // tiles over head_dim
  float* total;    // tiles over head_dim
  RowState state[kAttendRows];

  explicit Work(const AttendBlock& args)
      : rows(args.num_rows),
        dim_panels((args.head_dim + 15) / 16),
        blocks(args.num_rows),
        query(args.scratch),
        scores(query + kAttendRows * padded_to_block(args.head_dim)),
        weights(scores + kAttendRows * kAttentionKeys),
        span(weights + kAttendRows * kAttentionKeys),
        total(span + kAttendRows * padded_to_block(args.head_dim)) {}

  // Where element 0 of row r lies in a tile of panel p.
  float* place(float* tiles, int64_t p, int64_t r) const { return tiles + (p * rows + r) * 16; }
  void start_span(int64_t r) {
    state[r].max = -__builtin_inff();
    state[r].sum = 0;
    for (int64_t p = 0; p < dim_panels; ++p) store(place(span, p, r), zero());
  }
};

// tiles[p] += rows of x times panel p.
void multiply_tiles(Element rule, const Work& work, const float* x, int64_t k, const char* weight,
                    int64_t panel_bytes, int64_t panels, float* tiles) {
  const int64_t tile = work.rows * 16;
  for (int64_t p = 0; p < panels; p += 2) {
    const int count = panels - p < 2 ? 1 : 2;
    const char* w = weight + p * panel_bytes;
    multiply_panels(rule, work.blocks, count,
                    {.x = x,
                     .k = k,
                     .weight = {w, w + (count - 1) * panel_bytes},
                     .acc = {tiles + p * tile, tiles + (p + count - 1) * tile}});
  }
}

// Where the micro-kernel expects 32 values of row r, block of 32 k number `block`, of rows widened
// to k values.
float* widened_place(const Work& work, float* x, int64_t k, int64_t r, int64_t block) {
  int64_t b = r * work.blocks.count / work.rows;
  while (work.blocks.begin(b + 1) <= r) ++b;
  const int64_t begin = work.blocks.begin(b);
  const int64_t rows = work.blocks.begin(b + 1) - begin;
  return x + begin * k + (block * rows + (r - begin)) * kBlock;
}

// The softmax step of one row over one block: scores become numerators, the span's statistics and
// outputs move on.
template <Element type>
void softmax_step(Work& work, int64_t r, int64_t keys_seen, float scale) {
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
    if constexpr (type == Element::bf16) s[p] = round_bf16(s[p]);
  }
  for (int half = 0; half < 2; ++half) {
    float* place = widened_place(work, work.weights, kAttentionKeys, r, half);
    F32x16 first = s[2 * half];
    F32x16 second = s[2 * half + 1];
    if constexpr (type == Element::bf16)
      split_even_odd(s[2 * half], s[2 * half + 1], first, second);
    store(place, first);
    store(place + 16, second);
  }
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
    const int64_t count = args.head_dim - p * 16 < 16 ? args.head_dim - p * 16 : 16;
    const int64_t place = args.row_offset[r] + p * 16;
    if constexpr (type == Element::bf16) {
      store_first_bf16(static_cast<uint16_t*>(args.out) + place, value, count);
    } else {
      store_first(static_cast<float*>(args.out) + place, value, count);
    }
  }
}

template <Element type>
void attend_rows(const AttendBlock& args) {
  Work work(args);
  const int64_t element = type == Element::bf16 ? 2 : 4;
  widen_rows<type, type>(
      work.blocks, args.head_dim, work.query, [&](int64_t r) __attribute__((always_inline)) {
        return static_cast<const char*>(args.q) + args.row_offset[r] * element;
      });
  int64_t last_key = 0;
  for (int64_t r = 0; r < work.rows; ++r)
    last_key = args.num_keys[r] > last_key ? args.num_keys[r] : last_key;
  for (int64_t r = 0; r < work.rows; ++r) work.start_span(r);
  for (int64_t key = 0; key < last_key; key += kAttentionKeys) {
    const int64_t block = key / kAttentionKeys;
    const int64_t page = args.pages[block];
    std::memset(work.scores, 0, static_cast<size_t>(work.rows * kAttentionKeys) * sizeof(float));
    multiply_tiles(type, work, work.query, args.head_dim,
                   static_cast<const char*>(args.keys) + page * args.key_page_bytes,
                   args.key_panel_bytes, kKeyPanels, work.scores);
    // A row past its last key goes on computing values that nobody reads: its output is already
    // written.
    for (int64_t r = 0; r < work.rows; ++r) {
      const int64_t seen = args.num_keys[r] - key;
      if (seen > 0)
        softmax_step<type>(work, r, seen < kAttentionKeys ? seen : kAttentionKeys, args.scale);
    }
    multiply_tiles(type, work, work.weights, kAttentionKeys,
                   static_cast<const char*>(args.values) + page * args.value_page_bytes,
                   args.value_panel_bytes, work.dim_panels, work.span);
    for (int64_t r = 0; r < work.rows; ++r) {
      const int64_t left = args.num_keys[r] - key;
      const bool last = left > 0 && left <= kAttentionKeys;
      if (!last && !(left > 0 && block % kSpanBlocks == kSpanBlocks - 1)) continue;
      merge_span(work, r, block < kSpanBlocks);
      if (last) write_row<type>(args, work, r);
      work.start_span(r);
    }
  }
}

}  // namespace

void attend(const AttendBlock& args) {
  if (args.type == Element::bf16) {
    attend_rows<Element::bf16>(args);
  } else {
    attend_rows<Element::f32>(args);
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

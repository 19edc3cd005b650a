// Attention by FMA chains, of either type.
#include "kernels/cpu/tier/attend.h"

#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

template <Element type>
class ChainProducts {
 public:
  static constexpr Element kType = type;
  static constexpr int64_t kRowUnit = 1;

  ChainProducts(const AttendBlock& args, const Work& work)
      : args_(args), work_(work), blocks_(work.rows) {
    const int64_t element = type == Element::bf16 ? 2 : 4;
    widen_rows<type, type>(
        blocks_, args.key_width, work.query, [&](int64_t r) __attribute__((always_inline)) {
          return static_cast<const char*>(args.q) + args.rows[r] * args.key_width * element;
        });
  }

  void multiply_keys(const char* keys, int64_t seen) const {
    std::memset(work_.scores, 0, static_cast<size_t>(work_.rows * kAttentionKeys) * sizeof(float));
    multiply(work_.query, args_.key_width, keys, args_.key_panel_bytes, (seen + 15) / 16,
             work_.scores);
  }
  // The first half of a page is read alone where nothing lies in the second: its block of the sum
  // would add a zero. Numerators of one block of rows lie half behind half, those of several do
  // not.
  void multiply_values(const char* values, int64_t seen) const {
    const bool half = type == Element::bf16 && blocks_.count == 1 && seen <= kBlock;
    multiply(work_.weights, half ? kBlock : kAttentionKeys, values, args_.value_panel_bytes,
             work_.dim_panels, work_.span);
    for (int64_t i = 0; half && i < work_.dim_panels * work_.rows; ++i) {
      float* sums = work_.span + i * 16;
      store(sums, add(load(sums), zero()));
    }
  }

  void put_weights(int64_t r, const F32x16 (&s)[kKeyPanels]) const {
    for (int half = 0; half < 2; ++half) {
      float* place = widened_place(r, half);
      F32x16 first = s[2 * half];
      F32x16 second = s[2 * half + 1];
      if constexpr (type == Element::bf16)
        split_even_odd(s[2 * half], s[2 * half + 1], first, second);
      store(place, first);
      store(place + 16, second);
    }
  }

 private:
  // tiles[p] += rows of x times panel p.
  void multiply(const float* x, int64_t k, const char* weight, int64_t panel_bytes, int64_t panels,
                float* tiles) const {
    const int64_t tile = work_.rows * 16;
    for (int64_t p = 0; p < panels; p += 2) {
      const int count = panels - p < 2 ? 1 : 2;
      const char* w = weight + p * panel_bytes;
      multiply_panels(type, blocks_, count,
                      {.x = x,
                       .k = k,
                       .weight = {w, w + (count - 1) * panel_bytes},
                       .acc = {tiles + p * tile, tiles + (p + count - 1) * tile}});
    }
  }

  // Where the micro-kernel expects 32 numerators of row r.
  float* widened_place(int64_t r, int64_t half) const {
    int64_t b = r * blocks_.count / work_.rows;
    while (blocks_.begin(b + 1) <= r) ++b;
    const int64_t begin = blocks_.begin(b);
    const int64_t rows = blocks_.begin(b + 1) - begin;
    return work_.weights + begin * kAttentionKeys + (half * rows + (r - begin)) * kBlock;
  }

  const AttendBlock& args_;
  const Work& work_;
  RowBlocks blocks_;
};

}  // namespace

void attend(const AttendBlock& args) {
  if (args.type == Element::bf16) {
    attend_rows<ChainProducts<Element::bf16>>(args);
  } else {
    attend_rows<ChainProducts<Element::f32>>(args);
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

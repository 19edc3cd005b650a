// Products with panels of integers: decoded in registers for a few rows, which wait for memory, and
// through a piece of the first cache for more, which share the work.
#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Chains, words, scales and masks of these fit into registers, nearly.
#if defined(__AVX512F__)
constexpr int kMicroPanels = 2;
constexpr int kFewRows = 8;
#else
constexpr int kMicroPanels = 1;
constexpr int kFewRows = 2;
#endif
static_assert(kFewRows <= kMicroRows);

// Chains of fewer rows wait for one another: both panels then go side by side.
template <int kRows, int kPanels>
constexpr int kTogether = kRows <= 2 ? kPanels : 1;

// One group of kCount panels, kFirst being the first of them.
template <Coding coding, int kRows, int kPanels, int kFirst, int kCount>
DSMOE_HD void add_group(const float* x, const char* const (&group)[kPanels],
                        F32x16 (&even)[kRows][kPanels], F32x16 (&odd)[kRows][kPanels]) {
  using P = Place<coding>;
  GroupScale<coding> scale[kCount];
  for (int p = 0; p < kCount; ++p) scale[p].load(group[kFirst + p]);
  for (int word = 0; word < P::kWords; ++word) {
    I32x16 words[kCount];
    for (int p = 0; p < kCount; ++p) {
      const char* line = group[kFirst + p] + kGroupScaleBytes + word * kWordBytes;
      _mm_prefetch(line + kCodedPrefetchBytes, _MM_HINT_T0);
      words[p] = load_bits(line);
    }
    const float* steps = x + word * P::kPerWord / 2;
    unrolled<P::kPerWord / 2>([&]<int pair>() __attribute__((always_inline)) {
      for (int p = 0; p < kCount; ++p) {
        const F32x16 weight_even = scale[p].template numbers<2 * pair>(words[p]);
        const F32x16 weight_odd = scale[p].template numbers<2 * pair + 1>(words[p]);
        for (int r = 0; r < kRows; ++r) {
          F32x16& e = even[r][kFirst + p];
          F32x16& o = odd[r][kFirst + p];
          e = fma(broadcast(steps[r * 32 + pair]), weight_even, e);
          o = fma(broadcast(steps[r * 32 + 16 + pair]), weight_odd, o);
        }
      }
    });
  }
}

template <Coding coding, int kRows, int kPanels>
void micro_coded(const MicroArgs& args) {
  constexpr int kCount = kTogether<kRows, kPanels>;
  const char* group[kPanels];
  for (int p = 0; p < kPanels; ++p) group[p] = static_cast<const char*>(args.weight[p]);
  const float* x = args.x;
  for (int64_t k = 0; k < args.k; k += kBlock) {
    F32x16 even[kRows][kPanels];
    F32x16 odd[kRows][kPanels];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) even[r][p] = odd[r][p] = zero();
    }
    unrolled<kPanels / kCount>([&]<int i>() __attribute__((always_inline)) {
      add_group<coding, kRows, kPanels, i * kCount, kCount>(x, group, even, odd);
    });
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        float* acc = args.acc[p] + r * 16;
        store(acc, add(load(acc), add(even[r][p], odd[r][p])));
      }
    }
    for (int p = 0; p < kPanels; ++p) group[p] += kGroupBytes<coding>;
    x += kRows * kBlock;
  }
}

using Micro = void (*)(const MicroArgs&);

struct MicroTable {
  Micro of[kMicroPanels][kFewRows];  // [panels - 1][rows - 1]
};

template <Coding coding, int kPanels, int... kRow>
constexpr void fill_micro(MicroTable& table, std::integer_sequence<int, kRow...>) {
  ((table.of[kPanels - 1][kRow] = micro_coded<coding, kRow + 1, kPanels>), ...);
}

template <Coding coding>
constexpr MicroTable make_micro_table() {
  MicroTable table{};
  constexpr auto rows = std::make_integer_sequence<int, kFewRows>{};
  fill_micro<coding, 1>(table, rows);
  if constexpr (kMicroPanels > 1) fill_micro<coding, kMicroPanels>(table, rows);
  return table;
}

constexpr MicroTable kInt8 = make_micro_table<Coding::int8>();
constexpr MicroTable kInt4 = make_micro_table<Coding::int4>();

void multiply_decoded(Coding coding, RowBlocks blocks, int num_panels, const MicroArgs& args,
                      uint16_t* decoded) {
  const int64_t group_bytes =
      coding == Coding::int8 ? kGroupBytes<Coding::int8> : kGroupBytes<Coding::int4>;
  MicroArgs piece = args;
  piece.x_depth = args.k;
  for (int64_t k = 0; k < args.k; k += kDecodeDepth) {
    piece.x_begin = k;
    piece.k = args.k - k < kDecodeDepth ? args.k - k : kDecodeDepth;
    for (int p = 0; p < num_panels; ++p) {
      uint16_t* out = decoded + p * kDecodeDepth * 16;
      decode_panel(coding, static_cast<const char*>(args.weight[p]) + k / kGroupDepth * group_bytes,
                   piece.k, out);
      piece.weight[p] = out;
    }
    multiply_panels(Element::bf16, blocks, num_panels, piece);
  }
}

}  // namespace

void multiply_coded_panels(Coding coding, RowBlocks blocks, int num_panels, const MicroArgs& args,
                           uint16_t* decoded) {
  if (blocks.rows > kFewRows) return multiply_decoded(coding, blocks, num_panels, args, decoded);
  const MicroTable& table = coding == Coding::int8 ? kInt8 : kInt4;
  for (int first = 0; first < num_panels; first += kMicroPanels) {
    const int panels = num_panels - first < kMicroPanels ? num_panels - first : kMicroPanels;
    MicroArgs call = args;
    for (int p = 0; p < panels; ++p) {
      call.weight[p] = args.weight[first + p];
      call.acc[p] = args.acc[first + p];
    }
    table.of[panels - 1][blocks.rows - 1](call);
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

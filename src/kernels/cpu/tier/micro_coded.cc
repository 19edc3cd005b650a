// Products with panels of integers, decoded in registers on their way to the FMA chains.
#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Products are as in micro.cc. The decoding of a weight serves the rows of one call. Where the
// scales are powers of two it takes no slot that an FMA could use.
#if defined(__AVX512F__)
constexpr int kPairRows = 4;
constexpr int kJointChains = 24;
#else
constexpr int kPairRows = 0;
constexpr int kJointChains = 4;
#endif

// One group of kPanels panels.
template <Coding coding, Scaling scaling, int kRows, int kPanels>
class GroupProduct {
  static constexpr int kPairs = kLineDepth<coding> / 2;
  using Chains = F32x16[kRows][kPanels];

 public:
  DSMOE_HD GroupProduct(const float* x, const char* const* group) : x_(x), group_(group) {}

  // acc = acc + (E + O)
  DSMOE_HD void add_to(float* const* acc) const {
    Chains even, odd;
    clear(even);
    clear(odd);
    if constexpr (2 * kRows * kPanels <= kJointChains) {
      for_each_line([&]<bool last>(int line) __attribute__((always_inline)) {
        unrolled<kPairs>([&]<int pair>() __attribute__((always_inline)) {
          step<0, 2 * pair, last>(line, even);
          step<16, 2 * pair + 1, last>(line, odd);
        });
      });
    } else {
      for_each_line([&]<bool last>(int line) __attribute__((always_inline)) {
        unrolled<kPairs>([&]<int pair>() __attribute__((always_inline)) {
          step<0, 2 * pair, last>(line, even);
        });
      });
      for_each_line([&]<bool last>(int line) __attribute__((always_inline)) {
        unrolled<kPairs>([&]<int pair>() __attribute__((always_inline)) {
          step<16, 2 * pair + 1, last>(line, odd);
        });
      });
    }
    for (int p = 0; p < kPanels; ++p) {
      const Group<coding, scaling> scale(group_[p]);
      for (int r = 0; r < kRows; ++r) {
        float* sum = acc[p] + r * 16;
        store(sum, scale.add_to(load(sum), add(even[r][p], odd[r][p])));
      }
    }
  }

 private:
  DSMOE_HD static void clear(Chains& chains) {
    for (auto& row : chains) {
      for (F32x16& chain : row) chain = zero();
    }
  }

  // visit<whether it is the last>(line)
  template <class Visit>
  DSMOE_HD static void for_each_line(Visit&& visit) {
    constexpr int kLast = kGroupLines<coding> - 1;
    for (int line = 0; line < kLast; ++line) visit.template operator()<false>(line);
    visit.template operator()<true>(kLast);
  }

  // One step of one half of the chains: integer `idx` of a line.
  template <int half, int idx, bool last_line>
  DSMOE_HD void step(int line, Chains& chains) const {
    F32x16 weight[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      const char* from = group_[p] + kGroupScaleBytes + line * kLineBytes;
      if constexpr (idx == 0) ask_behind(from);
      weight[p] = Group<coding, scaling>(group_[p]).template numbers_of_line<idx, last_line>(from);
    }
    const float* x = x_ + half + line * kPairs + idx / 2;
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p)
        chains[r][p] = fma_broadcast(x[r * kBlock], weight[p], chains[r][p]);
    }
  }

  const float* x_;
  const char* const* group_;
};

template <Coding coding, int kRows, int kPanels>
void micro_coded(const MicroArgs& args) {
  const char* group[kPanels];
  for (int p = 0; p < kPanels; ++p) group[p] = static_cast<const char*>(args.weight[p]);
  const float* x = args.x;
  for (int64_t k = 0; k < args.k; k += kBlock) {
    for (int p = 0; p < kPanels; ++p) ask_behind(group[p]);
    bool powers = coding == Coding::int8 && args.moderate_x;
    for (int p = 0; p < kPanels; ++p) powers = powers && moderate_scales(group[p], 0x7f);
    if (powers) {
      GroupProduct<Coding::int8, Scaling::sums, kRows, kPanels>(x, group).add_to(args.acc);
    } else {
      GroupProduct<coding, Scaling::numbers, kRows, kPanels>(x, group).add_to(args.acc);
    }
    for (int p = 0; p < kPanels; ++p) group[p] += kGroupBytes<coding>;
    x += kRows * kBlock;
  }
}

using Micro = void (*)(const MicroArgs&);

struct MicroTable {
  Micro single[kMicroRows];   // [rows - 1], one panel
  Micro pair[kPairRows + 1];  // [rows], two panels
};

template <Coding coding, int... kRow>
constexpr void fill_single(MicroTable& table, std::integer_sequence<int, kRow...>) {
  ((table.single[kRow] = micro_coded<coding, kRow + 1, 1>), ...);
}
template <Coding coding, int... kRow>
constexpr void fill_pair(MicroTable& table, std::integer_sequence<int, kRow...>) {
  ((table.pair[kRow + 1] = micro_coded<coding, kRow + 1, 2>), ...);
}

template <Coding coding>
constexpr MicroTable make_micro_table() {
  MicroTable table{};
  fill_single<coding>(table, std::make_integer_sequence<int, kMicroRows>{});
  fill_pair<coding>(table, std::make_integer_sequence<int, kPairRows>{});
  return table;
}

constexpr MicroTable kInt8 = make_micro_table<Coding::int8>();
constexpr MicroTable kInt4 = make_micro_table<Coding::int4>();

}  // namespace

void multiply_coded_panels(Coding coding, RowBlocks blocks, int num_panels, const MicroArgs& args) {
  const MicroTable& table = coding == Coding::int8 ? kInt8 : kInt4;
  if (num_panels == 2 && blocks.rows <= kPairRows) return table.pair[blocks.rows](args);
  const int64_t padded = padded_to_block(args.k);
  for (int p = 0; p < num_panels; ++p) {
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t begin = blocks.begin(b);
      table.single[blocks.begin(b + 1) - begin - 1]({.x = args.x + begin * padded,
                                                     .k = args.k,
                                                     .weight = {args.weight[p]},
                                                     .acc = {args.acc[p] + begin * 16},
                                                     .moderate_x = args.moderate_x});
    }
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

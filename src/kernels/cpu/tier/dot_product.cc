// Rows times panels of int4 by VDPBF16PS, which multiplies bf16 pairs as they lie in a register.
// With one of the two values of x zero it is a step of a half chain, bit for bit what an FMA gives:
// so integers become bf16 by a table, two to a lane, and need not be widened to floats.
#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/micro.h"
#include "kernels/cpu/tier/short_scales.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int kLinePairs = 4;  // registers of pairs that a line of 8 k becomes
constexpr int kWidePanels =
    4;                       // side by side at most, so that the chains of few rows need not wait
constexpr int kDotRows = 8;  // chains, pairs, table and scale of these fit into registers
constexpr int64_t kChunkRows = 12 * kDotRows;

// Pair i of a line holds k = 2 i (low half) and k = 2 i + 1 (high half) of sixteen outputs.
struct Pairs {
  __m512i of[kLinePairs];
};

class ShortScales {
 public:
  DSMOE_HD void load(const char* group) {
    const __m512i scale =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group)));
    const __m512i first_byte =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    class_ = _mm512_shuffle_epi8(_mm512_srli_epi32(scale, 1), first_byte);
    power_ = _mm512_and_si512(_mm512_slli_epi32(scale, 16),
                              _mm512_set1_epi32(static_cast<int>(0xff800000u)));
  }
  DSMOE_HD Pairs pairs(const char* line) const {
    const __m512i words = _mm512_loadu_si512(line);
    const __m512i even = index(words);
    const __m512i odd = index(_mm512_srli_epi32(words, 4));
    return {number(even), number(odd), number(_mm512_srli_epi16(even, 8)),
            number(_mm512_srli_epi16(odd, 8))};
  }
  DSMOE_HD F32x16 add_to(F32x16 acc, F32x16 sum) const {
    return fma(sum, {_mm512_castsi512_ps(power_)}, acc);
  }

 private:
  // The low four bits of each byte, c above them.
  DSMOE_HD __m512i index(__m512i words) const {
    constexpr int kSelect = 0xca;  // mask ? words : class
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x0f0f0f0f), words, class_, kSelect);
  }
  // The lowest six of each 16 bits count.
  DSMOE_HD static __m512i number(__m512i idx) {
    return _mm512_permutex2var_epi16(_mm512_load_si512(kNumbers.of), idx,
                                     _mm512_load_si512(kNumbers.of + 32));
  }

  __m512i class_;
  __m512i power_;
};

class AnyScales {
 public:
  DSMOE_HD void load(const char* group) { scaled_ = Scaled(group); }
  DSMOE_HD Pairs pairs(const char* line) const {
    const I32x16 words = load_bits(line);
    return {pair(scaled_.numbers<0>(words), scaled_.numbers<1>(words)),
            pair(scaled_.numbers<2>(words), scaled_.numbers<3>(words)),
            pair(scaled_.numbers<4>(words), scaled_.numbers<5>(words)),
            pair(scaled_.numbers<6>(words), scaled_.numbers<7>(words))};
  }
  DSMOE_HD F32x16 add_to(F32x16 acc, F32x16 sum) const { return add(acc, sum); }

 private:
  using Scaled = Group<Coding::int4, Scaling::numbers>;
  DSMOE_HD static __m512i pair(F32x16 low, F32x16 high) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low.v), 16),
                           _mm512_castps_si512(high.v));
  }
  Scaled scaled_;
};

// chain = chain + x * w for the half of w that x has its bits in. By hand, because GCC 12 would
// broadcast x into a register first.
DSMOE_HD void add_step(F32x16& chain, __m512i weight, const uint32_t& x) {
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(chain.v) : "v"(weight), "m"(x));
}

struct DotArgs {
  const uint32_t* x;  // [blocks of 32 k][rows][16 even, 16 odd]
  int64_t k;
  bool moderate_x;
  const char* weight[kWidePanels];
  float* acc[kWidePanels];  // [rows][16]
};

template <class Scales, int kRows, int kPanels>
DSMOE_HD void add_group(const uint32_t* x, const char* const* group, float* const* acc) {
  Scales scales[kPanels];
  F32x16 even[kPanels][kRows];
  F32x16 odd[kPanels][kRows];
  unrolled<kPanels>([&]<int p>() __attribute__((always_inline)) {
    scales[p].load(group[p]);
    for (int r = 0; r < kRows; ++r) even[p][r] = odd[p][r] = zero();
  });
#pragma GCC unroll 1
  for (int line = 0; line < kGroupLines<Coding::int4>; ++line) {
    const uint32_t* steps = x + line * 4;
    const int64_t byte = kGroupScaleBytes + line * kLineBytes;
    Pairs w[kPanels];
    unrolled<kPanels>([&]<int p>() __attribute__((always_inline)) {
      _mm_prefetch(group[p] + byte + kCodedPrefetchBytes, _MM_HINT_T0);
      w[p] = scales[p].pairs(group[p] + byte);
    });
    // Chain by chain in turn, so that none waits for its own last step.
    unrolled<4>([&]<int step>() __attribute__((always_inline)) {
      unrolled<kPanels>([&]<int p>() __attribute__((always_inline)) {
        unrolled<kRows>([&]<int r>() __attribute__((always_inline)) {
          const uint32_t* values = steps + r * kBlock + step;
          add_step(even[p][r], w[p].of[step], values[0]);
          add_step(odd[p][r], w[p].of[step], values[16]);
        });
      });
    });
  }
  unrolled<kPanels>([&]<int p>() __attribute__((always_inline)) {
    for (int r = 0; r < kRows; ++r) {
      float* sum = acc[p] + r * 16;
      store(sum, scales[p].add_to(load(sum), add(even[p][r], odd[p][r])));
    }
  });
}

template <int kRows, int kPanels>
void micro_dot(const DotArgs& args) {
  const char* group[kPanels];
  for (int p = 0; p < kPanels; ++p) group[p] = args.weight[p];
  const uint32_t* x = args.x;
  for (int64_t k = 0; k < args.k; k += kBlock) {
    bool is_short = args.moderate_x;
    for (int p = 0; p < kPanels; ++p) is_short = is_short && moderate_scales(group[p], kLaterBits);
    if (is_short) {
      add_group<ShortScales, kRows, kPanels>(x, group, args.acc);
    } else {
      for (int p = 0; p < kPanels; ++p) add_group<AnyScales, kRows, 1>(x, group + p, args.acc + p);
    }
    for (int p = 0; p < kPanels; ++p) group[p] += kGroupBytes<Coding::int4>;
    x += kRows * kBlock;
  }
}

using Micro = void (*)(const DotArgs&);
struct MicroTable {
  Micro of[kDotRows];  // [rows - 1]
};
template <int... kRow>
constexpr MicroTable make_micro_table(std::integer_sequence<int, kRow...>) {
  return {{micro_dot<kRow + 1, 1>...}};
}
constexpr MicroTable kMicro = make_micro_table(std::make_integer_sequence<int, kDotRows>{});

// 32 k of one row, zero behind `count`: even k, then odd; in the half of the pair they meet.
DSMOE_HD void split_block(const char* source, int64_t count, uint32_t* out) {
  alignas(64) uint16_t padded[kBlock] = {};
  std::memcpy(padded, source, static_cast<size_t>(smaller(count, kBlock)) * sizeof(uint16_t));
  const __m512i pairs = _mm512_load_si512(padded);
  const __m512i low = _mm512_set1_epi32(0xffff);
  _mm512_storeu_si512(out, _mm512_and_si512(low, pairs));
  _mm512_storeu_si512(out + 16, _mm512_andnot_si512(low, pairs));
}

// The rows of a chunk from k on, one row block behind the other.
void split_rows(const ProductBlock& args, const Chunk& chunk, int64_t k_begin, int64_t count,
                uint32_t* out) {
  const RowBlocks blocks(chunk.rows, kDotRows);
  for (int64_t b = 0; b < blocks.count; ++b) {
    const int64_t begin = blocks.begin(b);
    const int64_t rows = blocks.begin(b + 1) - begin;
    for (int64_t r = 0; r < rows; ++r) {
      const char* x = row_of_x(args, chunk.row_begin + begin + r, k_begin);
      uint32_t* target = out + begin * padded_to_block(count) + r * kBlock;
      for (int64_t k = 0; k < count; k += kBlock, target += rows * kBlock)
        split_block(x + k * 2, count - k, target);
    }
  }
}

bool moderate_rows(const ProductBlock& args, const Chunk& chunk) {
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const char* x = row_of_x(args, chunk.row_begin + r, 0);
    if (!moderate_values(reinterpret_cast<const uint16_t*>(x), args.k)) return false;
  }
  return true;
}

// All panels of two streams at one piece of k. A row takes four panels at a time, from the halves
// of both streams; two rows take two; more take one.
struct StreamProduct {
  const Streams& streams;
  int64_t panel_bytes;
  int64_t byte;       // from a panel's start
  int64_t tile_size;  // of acc: [panels of stream 0][tile_size], then stream 1
  float* acc;
  DotArgs args;  // x, k

  DSMOE_HD void put(DotArgs& call, int at, int stream, int64_t step) const {
    call.weight[at] = streams.base[stream] + step * panel_bytes + byte;
    call.acc[at] = acc + (stream * streams.steps + step) * tile_size;
  }

  void one_row() const {
    const int64_t half = streams.second / 2;
    DotArgs call = args;
    for (int64_t step = 0; step < half; ++step) {
      for (int stream = 0; stream < 2; ++stream) {
        put(call, stream, stream, step);
        put(call, 2 + stream, stream, half + step);
      }
      micro_dot<1, 4>(call);
    }
    rows_from(2 * half, RowBlocks(1));
  }

  void two_rows() const {
    DotArgs call = args;
    for (int64_t step = 0; step < streams.second; ++step) {
      put(call, 0, 0, step);
      put(call, 1, 1, step);
      micro_dot<2, 2>(call);
    }
    rows_from(streams.second, RowBlocks(2));
  }

  void rows_from(int64_t first_step, RowBlocks blocks) const {
    for (int64_t step = first_step; step < streams.steps; ++step) {
      for (int stream = 0; stream < (step < streams.second ? 2 : 1); ++stream) {
        for (int64_t b = 0; b < blocks.count; ++b) {
          const int64_t begin = blocks.begin(b);
          DotArgs call = args;
          put(call, 0, stream, step);
          call.acc[0] += begin * 16;
          call.x += begin * padded_to_block(args.k);
          kMicro.of[blocks.begin(b + 1) - begin - 1](call);
        }
      }
    }
  }

  void multiply(RowBlocks blocks) const {
    if (blocks.rows == 1) return one_row();
    if (blocks.rows == 2) return two_rows();
    rows_from(0, blocks);
  }
};

void multiply_chunk(const ProductBlock& args, const Chunk& chunk) {
  auto* operand = reinterpret_cast<uint32_t*>(args.scratch);
  float* acc = args.scratch + kProductOperandFloats;
  const int64_t tile_size = chunk.tile_rows * 16;
  const Streams streams = streams_of(args, chunk);
  start_chunk(args, chunk, streams, acc);
  const int64_t k_step = kProductOperandFloats / chunk.rows / kBlock * kBlock;
  const bool moderate_x = moderate_rows(args, chunk);
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    split_rows(args, chunk, k, count, operand);
    const StreamProduct product{
        .streams = streams,
        .panel_bytes = args.panel_bytes,
        .byte = panel_byte(args, k),
        .tile_size = tile_size,
        .acc = acc,
        .args = {.x = operand, .k = count, .moderate_x = moderate_x, .weight = {}, .acc = {}}};
    product.multiply(RowBlocks(chunk.rows, kDotRows));
  }
  finish_chunk(args, chunk, streams, acc);
}

}  // namespace

void product_int4(const ProductBlock& args) {
  for_each_chunk(args, kChunkRows, 1, [&](const Chunk& chunk) { multiply_chunk(args, chunk); });
}

}  // namespace dsmoe::kernels::DSMOE_TIER

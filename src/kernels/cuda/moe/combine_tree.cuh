// The tree over expert indices that combine adds a token's rows by.
#pragma once

#include "kernels/cuda/device/elements.cuh"

namespace dsmoe::kernels::cuda {

// Which rows a token's slots have.
struct Slots {
  const int32_t* index;        // [tokens, top_k]
  const float* gate;           // [tokens, top_k], or null: 1 each
  const int32_t* row_of_slot;  // [tokens, top_k]
  int32_t top_k;
};

// What a thread needs of a token's tree: the slots by ascending expert, absent ones before them,
// and the order of additions. Two neighbours in expert order part at the highest bit in which they
// differ, their border's level; a part joins what lies left of it as soon as the border to its
// right is higher. So slot i, the end of a part, takes up the parts that end at the slots in
// joins[i], the nearest first, and the last slot ends with all of them. Beyond eight slots loops
// stay loops: right, slow, and quick to compile.
template <int kSlots>
constexpr int kUnroll = kSlots <= 8 ? kSlots : 1;

template <int kSlots>
struct Recipe {
  int row[kSlots];
  float gate[kSlots];
  int joins[kSlots];  // bits

  __device__ bool any() const { return row[kSlots - 1] >= 0; }

  __device__ void build(const Slots& p, int token) {
    int expert[kSlots];
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i) {
      const bool present = i < p.top_k;
      const int64_t slot = static_cast<int64_t>(token) * p.top_k + (present ? i : 0);
      row[i] = present ? p.row_of_slot[slot] : -1;
      expert[i] = row[i] >= 0 ? p.index[slot] : -1;
      gate[i] = p.gate ? p.gate[slot] : 1.0f;
    }
#pragma unroll kUnroll < kSlots>
    for (int pass = 0; pass < kSlots; ++pass) {  // odd-even transposition: static indices only
#pragma unroll kUnroll < kSlots>
      for (int i = pass % 2; i + 1 < kSlots; i += 2) {
        if (expert[i] > expert[i + 1]) {
          const int e = expert[i], r = row[i];
          const float g = gate[i];
          expert[i] = expert[i + 1], row[i] = row[i + 1], gate[i] = gate[i + 1];
          expert[i + 1] = e, row[i + 1] = r, gate[i + 1] = g;
        }
      }
    }
    int level[kSlots];  // of the border after i
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i)
      level[i] = i + 1 < kSlots ? 31 - __clz(expert[i] ^ expert[i + 1 < kSlots ? i + 1 : i]) : 32;
    int open = 0;  // slots that end a part
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i) {
      joins[i] = 0;
      if (row[i] < 0) continue;
#pragma unroll kUnroll < kSlots>
      for (int end = 0; end < i; ++end) {
        if (open >> end & 1 && level[end] <= level[i]) joins[i] |= 1 << end;
      }
      open = (open & ~joins[i]) | 1 << i;
    }
  }
};

// Eight neighbouring values of a token's rows, under way.
template <class Operand, int kSlots>
struct RawRows {
  RawEight<Operand> slot[kSlots];
  RawEight<Operand> shared;

  // An absent slot reads row 0 and is never joined. `own`: the token's row of shared, or null;
  // `size`: of a row, or 8 where that divides it.
  __device__ void load(const Recipe<kSlots>* recipe, const Operand* routed, const Operand* own,
                       int begin, int pitch, int size) {
    if (own) shared.load(own, begin, size);
    if (!recipe) return;
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i) {
      slot[i].load(routed + static_cast<int64_t>(max(recipe->row[i], 0)) * pitch, begin, size);
    }
  }
  // The tree over the rows, then + shared; the kWide values from `first` on. Gates of 1 need no
  // multiplication.
  template <int kWide, bool kGated>
  __device__ void sum(float (&out)[kWide], const Recipe<kSlots>* recipe, bool with_shared,
                      int first) const {
    const bool any = recipe && recipe->any();
    float part[kSlots][kWide] = {};
    if (any) {
#pragma unroll kUnroll < kSlots>
      for (int i = 0; i < kSlots; ++i) {
        widen(part[i], slot[i], first);
#pragma unroll
        for (int j = 0; kGated && j < kWide; ++j) part[i][j] *= recipe->gate[i];
      }
#pragma unroll kUnroll < kSlots>
      for (int i = 1; i < kSlots; ++i) {
#pragma unroll kUnroll < kSlots>
        for (int end = i - 1; end >= 0; --end) {
          if (recipe->joins[i] >> end & 1) {
#pragma unroll
            for (int j = 0; j < kWide; ++j) part[i][j] = part[end][j] + part[i][j];
          }
        }
      }
    }
    float other[kWide];
    if (with_shared) widen(other, shared, first);
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      out[j] = part[kSlots - 1][j];
      if (with_shared) out[j] = any ? out[j] + other[j] : other[j];
    }
  }

 private:
  template <int kWide>
  __device__ static void widen(float (&v)[kWide], const RawEight<Operand>& raw, int first) {
#pragma unroll
    for (int half = 0; half < kWide / 4; ++half) {
      float four[4];
      raw.widen(four, first / 4 + half);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[4 * half + j] = four[j];
    }
  }
};

}  // namespace dsmoe::kernels::cuda

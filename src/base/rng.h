// Counter-based random numbers: a value is a function of (seed, purpose, stream, index) and of
// nothing else.
#pragma once

#include <cstdint>
#include <span>

#include "base/functions.h"

namespace dsmoe {

struct Uint32x4 {
  uint32_t words[4];
  friend bool operator==(const Uint32x4&, const Uint32x4&) = default;
};

// Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", 2011).
DSMOE_HD Uint32x4 philox4x32(Uint32x4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53u} * counter.words[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57u} * counter.words[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return counter;
}

// What the numbers are for, so that two uses of one seed never share numbers. The values are part
// of every result: append, never renumber.
enum class RngPurpose : uint32_t {
  parameter_init = 1,
  data_order = 2,
  sampling = 3,
  corpus = 4,
  test = 1000,
};

// Give each kind of draw its own (purpose, stream): the functions below all read the same words,
// four per at(block), and uniform_f32(0) is made of the same word as uniform_f64(0).
struct Rng {
  uint64_t seed = 0;
  RngPurpose purpose = RngPurpose::test;
  uint32_t stream = 0;  // the caller's second index: which tensor, which choice

  DSMOE_HD Uint32x4 at(uint64_t index) const {
    const Uint32x4 counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                            static_cast<uint32_t>(purpose), stream}};
    return philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }

  // [0, 1), multiples of 2^-24: word index % 4 of block index / 4.
  float uniform_f32(uint64_t index) const;
  // [0, 1), multiples of 2^-53: two words.
  double uniform_f64(uint64_t index) const;
  // [0, bound), bound > 0; bias below bound / 2^64. Two words.
  uint64_t below(uint64_t index, uint64_t bound) const;
  // Mean 0, variance 1, |value| < 6.7: Box-Muller in double on words 2i and 2i + 1, rounded once.
  float normal_f32(uint64_t index) const;
  // out[i] = normal_f32(first_index + i), each block of words and each logarithm computed once.
  void fill_normal(uint64_t first_index, std::span<float> out) const;
};

}  // namespace dsmoe

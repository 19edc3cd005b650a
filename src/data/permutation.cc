// Feistel rounds keyed by the counter-based generator, with cycle walking.
#include "data/permutation.h"

#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace dsmoe::data {
namespace {

uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }

// A bijective mixer of 64 bits (shifts and odd multipliers); its high bits depend on all input
// bits.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 29)) * 0xa0761d6478bd642fu;
  return x ^ (x >> 32);
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size) {
  DSMOE_CHECK(size > 0 && size <= uint64_t{1} << 62, "a permutation of {} elements", size);
  const int bits = std::bit_width(size - 1);
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  const Rng rng{.seed = seed, .purpose = RngPurpose::data_order, .stream = 0};
  for (uint64_t i = 0; i < kRounds / 2; ++i) {
    const Uint32x4 words = rng.at(epoch * (kRounds / 2) + i);
    keys_[2 * i] = uint64_t{words.words[1]} << 32 | words.words[0];
    keys_[2 * i + 1] = uint64_t{words.words[3]} << 32 | words.words[2];
  }
}

// Each round replaces one half by itself xor a function of the other: invertible whatever the
// function is, so the whole is a bijection even when the halves differ in width.
uint64_t Permutation::encrypt(uint64_t value) const {
  uint64_t low = value & mask(low_bits_), high = value >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high ^= mix(low ^ keys_[static_cast<size_t>(round)]) & mask(high_bits_);
    low ^= mix(high ^ keys_[static_cast<size_t>(round) + 1]) & mask(low_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t index) const {
  DSMOE_CHECK(index < size_, "element {} of {}", index, size_);
  uint64_t value = index;
  do value = encrypt(value);
  while (value >= size_);
  return value;
}

}  // namespace dsmoe::data

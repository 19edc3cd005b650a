// A random order of 0..n-1 that is computed, not stored: any element in constant time and memory.
#pragma once

#include <array>
#include <cstdint>

namespace dsmoe::data {

// A bijection of [0, size) for each (seed, epoch): a Feistel network on the smallest power of two
// that holds `size`, walked until the value falls inside (under two steps on average).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch);

  uint64_t size() const { return size_; }
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t encrypt(uint64_t value) const;

  uint64_t size_;
  int low_bits_ = 0, high_bits_ = 0;  // the two halves; they differ by at most one
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace dsmoe::data

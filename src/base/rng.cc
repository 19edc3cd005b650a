// From Philox words to uniform, bounded and normal numbers.
#include "base/rng.h"

#include "base/error.h"

namespace dsmoe {
namespace {

uint64_t word64(const Rng& rng, uint64_t index) {
  const Uint32x4 block = rng.at(index / 2);
  const int first = static_cast<int>(index % 2) * 2;
  return (uint64_t{block.words[first + 1]} << 32) | block.words[first];
}

struct NormalPair {
  float even, odd;
};

NormalPair normal_pair(uint32_t a, uint32_t b) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  const double u = (static_cast<double>(a) + 1.0) * 0x1p-32;  // (0, 1]: its log is finite
  const double radius = __builtin_sqrt(-2.0 * log_f64(u));
  const double angle = kTwoPi * (static_cast<double>(b) * 0x1p-32);
  return {static_cast<float>(radius * cos_f64(angle)), static_cast<float>(radius * sin_f64(angle))};
}

}  // namespace

float Rng::uniform_f32(uint64_t index) const {
  return static_cast<float>(at(index / 4).words[index % 4] >> 8) * 0x1p-24f;
}

double Rng::uniform_f64(uint64_t index) const {
  return static_cast<double>(word64(*this, index) >> 11) * 0x1p-53;
}

uint64_t Rng::below(uint64_t index, uint64_t bound) const {
  DSMOE_CHECK(bound > 0, "a random number below 0 was asked for");
  __extension__ using Uint128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Uint128>(word64(*this, index)) * bound) >> 64);
}

float Rng::normal_f32(uint64_t index) const {
  const Uint32x4 block = at(index / 4);
  const int first = static_cast<int>(index % 4) & 2;
  const NormalPair pair = normal_pair(block.words[first], block.words[first + 1]);
  return index % 2 == 0 ? pair.even : pair.odd;
}

void Rng::fill_normal(uint64_t first_index, std::span<float> out) const {
  size_t i = 0;
  for (; i < out.size() && (first_index + i) % 4 != 0; ++i) out[i] = normal_f32(first_index + i);
  for (; i + 4 <= out.size(); i += 4) {
    const Uint32x4 block = at((first_index + i) / 4);
    const NormalPair low = normal_pair(block.words[0], block.words[1]);
    const NormalPair high = normal_pair(block.words[2], block.words[3]);
    out[i] = low.even;
    out[i + 1] = low.odd;
    out[i + 2] = high.even;
    out[i + 3] = high.odd;
  }
  for (; i < out.size(); ++i) out[i] = normal_f32(first_index + i);
}

}  // namespace dsmoe

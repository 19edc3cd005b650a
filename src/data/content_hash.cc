// XXH64 as its public specification defines it: four lanes over stripes of 32 bytes, then the tail.
#include "data/content_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dsmoe::data {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as stored");

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;
constexpr size_t kStripe = 32;

template <class Word>
uint64_t load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::array<uint64_t, 4>& lanes, const std::byte* stripe) {
  for (size_t i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<uint64_t>(stripe + 8 * i));
}

}  // namespace

ContentHash::ContentHash(uint64_t seed)
    : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void ContentHash::update(std::span<const std::byte> bytes) {
  const size_t held = total_ % kStripe;
  total_ += bytes.size();
  if (held != 0) {
    const size_t taken = std::min(kStripe - held, bytes.size());
    std::copy_n(bytes.data(), taken, pending_.data() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < kStripe) return;
    mix_stripe(lanes_, pending_.data());
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) mix_stripe(lanes_, bytes.data());
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
}

void ContentHash::update_u64(uint64_t value) {
  update(std::as_bytes(std::span<const uint64_t>(&value, 1)));
}

uint64_t ContentHash::value() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const std::byte* at = pending_.data();
  const std::byte* end = at + total_ % kStripe;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ (load<uint8_t>(at) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t content_hash(std::span<const std::byte> bytes, uint64_t seed) {
  ContentHash hash(seed);
  hash.update(bytes);
  return hash.value();
}

}  // namespace dsmoe::data

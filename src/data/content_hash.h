// XXH64 over bytes that arrive in parts: names cached corpora and detects damage in token shards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dsmoe::data {

// Equal bytes give equal values however they were cut into update() calls. Not cryptographic: it
// finds accidents, not attackers.
class ContentHash {
 public:
  explicit ContentHash(uint64_t seed = 0);

  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes) { update(std::as_bytes(std::span(bytes))); }
  // Eight bytes, little-endian.
  void update_u64(uint64_t value);

  // The hash of everything so far; more may follow.
  uint64_t value() const;

 private:
  uint64_t seed_;
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, 32> pending_{};  // total_ % 32 bytes that do not fill a stripe yet
  uint64_t total_ = 0;
};

uint64_t content_hash(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint64_t content_hash(std::string_view bytes, uint64_t seed = 0) {
  return content_hash(std::as_bytes(std::span(bytes)), seed);
}

}  // namespace dsmoe::data

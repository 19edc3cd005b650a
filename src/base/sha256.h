// SHA-256 (FIPS 180-4) over bytes that arrive in parts: names the content of checkpoints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe {

// Takes `count` blocks of 64 bytes into the state. The first is the function as the standard writes
// it, the second is made of the CPU's instructions for it (CpuFeatures::sha) and five to ten times
// as fast.
void sha256_compress(std::array<uint32_t, 8>& state, const std::byte* blocks, std::size_t count);
void sha256_compress_by_instructions(std::array<uint32_t, 8>& state, const std::byte* blocks,
                                     std::size_t count);

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes) { update(std::as_bytes(std::span(bytes))); }

  // 64 hexadecimal digits. Nothing may be added afterwards.
  std::string finish();

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};  // length_ % 64 bytes
  uint64_t length_ = 0;
};

std::string sha256(std::string_view bytes);

}  // namespace dsmoe

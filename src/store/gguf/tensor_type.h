// Types of GGUF tensors: how blocks of numbers lie in bytes, and which numbers they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe::store::gguf {

// The numbers of the format; those that are not here are not read.
enum class TensorType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

// A block holds consecutive numbers of one row.
struct BlockSize {
  int64_t elements = 1;
  int64_t bytes = 0;
};

bool is_readable(uint32_t type);
// "Q4_K", "IQ4_XS", or "43" for a number that nobody has named.
std::string name_of_type(uint32_t type);
inline std::string name_of(TensorType type) { return name_of_type(static_cast<uint32_t>(type)); }
BlockSize block_size(TensorType type);
inline bool is_quantised(TensorType type) { return block_size(type).elements > 1; }
// Of the types that are written here ("f32", "f16", "bf16", "q8_0", "q4_0"); throws Error(usage).
TensorType parse_written_type(std::string_view name);

// Bytes of `count` numbers, a whole number of blocks.
inline int64_t num_bytes(TensorType type, int64_t count) {
  const BlockSize block = block_size(type);
  return count / block.elements * block.bytes;
}

// The numbers that blocks stand for, out.size() of them: a whole number of blocks. Integers times
// their scales are exact in fp32; one rounding remains where a minimum is taken off.
void dequantise(TensorType type, std::span<const std::byte> blocks, std::span<float> out);

// Values beyond this cannot be written as that type.
float largest_magnitude(TensorType type);
// Rounds to nearest even; blocks as llama.cpp's own tools choose them. `row` is finite, below the
// largest magnitude, and a whole number of blocks; `out` has num_bytes().
void encode(TensorType type, std::span<const float> row, std::span<std::byte> out);

}  // namespace dsmoe::store::gguf

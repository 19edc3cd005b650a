// Names, sizes and the arithmetic of blocks.
#include "store/gguf/tensor_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "tensor/bf16.h"

namespace dsmoe::store::gguf {
namespace {

struct NamedType {
  uint32_t number;
  std::string_view name;
  BlockSize block = {};  // without bytes: not read
};

constexpr std::array kTypes = {NamedType{0, "F32", {1, 4}},
                               NamedType{1, "F16", {1, 2}},
                               NamedType{2, "Q4_0", {32, 18}},
                               NamedType{3, "Q4_1", {32, 20}},
                               NamedType{6, "Q5_0", {32, 22}},
                               NamedType{7, "Q5_1", {32, 24}},
                               NamedType{8, "Q8_0", {32, 34}},
                               NamedType{9, "Q8_1"},
                               NamedType{10, "Q2_K"},
                               NamedType{11, "Q3_K"},
                               NamedType{12, "Q4_K", {256, 144}},
                               NamedType{13, "Q5_K", {256, 176}},
                               NamedType{14, "Q6_K", {256, 210}},
                               NamedType{15, "Q8_K"},
                               NamedType{16, "IQ2_XXS"},
                               NamedType{17, "IQ2_XS"},
                               NamedType{18, "IQ3_XXS"},
                               NamedType{19, "IQ1_S"},
                               NamedType{20, "IQ4_NL"},
                               NamedType{21, "IQ3_S"},
                               NamedType{22, "IQ2_S"},
                               NamedType{23, "IQ4_XS"},
                               NamedType{24, "I8"},
                               NamedType{25, "I16"},
                               NamedType{26, "I32"},
                               NamedType{27, "I64"},
                               NamedType{28, "F64"},
                               NamedType{29, "IQ1_M"},
                               NamedType{30, "BF16", {1, 2}},
                               NamedType{34, "TQ1_0"},
                               NamedType{35, "TQ2_0"},
                               NamedType{39, "MXFP4"},
                               NamedType{40, "NVFP4"}};

const NamedType* find_type(uint32_t number) {
  const auto* found = std::ranges::find(kTypes, number, &NamedType::number);
  return found == kTypes.end() ? nullptr : found;
}

// Walks along the parts of a block.
class BlockReader {
 public:
  explicit BlockReader(const std::byte* at) : at_(reinterpret_cast<const uint8_t*>(at)) {}

  float half() {
    const auto bits = static_cast<uint16_t>(at_[0] | at_[1] << 8);
    at_ += 2;
    return tensor::half_to_float(bits);
  }
  const uint8_t* bytes(int count) { return std::exchange(at_, at_ + count); }

 private:
  const uint8_t* at_;
};

int low(uint8_t byte) { return byte & 15; }
int high(uint8_t byte) { return byte >> 4; }

// Value j of the first half and of the second share byte j. `fifth` adds bit j of a mask as a fifth
// bit.
template <class Number>
void nibbles(const uint8_t* qs, const uint8_t* fifth, float* out, Number&& number) {
  for (int j = 0; j < 16; ++j) {
    const int five_low = fifth ? fifth[j / 8] >> (j % 8) & 1 : 0;
    const int five_high = fifth ? fifth[2 + j / 8] >> (j % 8) & 1 : 0;
    out[j] = number(low(qs[j]) + 16 * five_low);
    out[j + 16] = number(high(qs[j]) + 16 * five_high);
  }
}

void block_q4_0(BlockReader in, float* out) {
  const float d = in.half();
  nibbles(in.bytes(16), nullptr, out, [&](int q) { return d * static_cast<float>(q - 8); });
}
void block_q4_1(BlockReader in, float* out) {
  const float d = in.half(), least = in.half();
  nibbles(in.bytes(16), nullptr, out, [&](int q) { return d * static_cast<float>(q) + least; });
}
void block_q5_0(BlockReader in, float* out) {
  const float d = in.half();
  const uint8_t* fifth = in.bytes(4);
  nibbles(in.bytes(16), fifth, out, [&](int q) { return d * static_cast<float>(q - 16); });
}
void block_q5_1(BlockReader in, float* out) {
  const float d = in.half(), least = in.half();
  const uint8_t* fifth = in.bytes(4);
  nibbles(in.bytes(16), fifth, out, [&](int q) { return d * static_cast<float>(q) + least; });
}
void block_q8_0(BlockReader in, float* out) {
  const float d = in.half();
  const uint8_t* qs = in.bytes(32);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(qs[j]));
}

// Eight scales and eight minima of six bits in twelve bytes: four of each whole in the low bits,
// the others cut in four bits and two.
struct ScalePair {
  int scale, least;
};
ScalePair scale_pair(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  return {(packed[i + 4] & 15) | (packed[i - 4] >> 6 << 4),
          (packed[i + 4] >> 4) | (packed[i] >> 6 << 4)};
}

// Q4_K, and Q5_K with its fifth bits: eight groups of 32; two groups share their bytes.
void block_k(BlockReader in, bool has_fifth, float* out) {
  const float d = in.half(), d_least = in.half();
  const uint8_t* packed = in.bytes(12);
  const uint8_t* fifth = has_fifth ? in.bytes(32) : nullptr;
  const uint8_t* qs = in.bytes(128);
  for (int group = 0; group < 8; ++group) {
    const ScalePair pair = scale_pair(packed, group);
    const float scale = d * static_cast<float>(pair.scale);
    const float least = d_least * static_cast<float>(pair.least);
    for (int j = 0; j < 32; ++j) {
      const uint8_t byte = qs[group / 2 * 32 + j];
      const int four = group % 2 == 0 ? low(byte) : high(byte);
      const int five = has_fifth ? fifth[j] >> group & 1 : 0;
      *out++ = scale * static_cast<float>(four + 16 * five) - least;
    }
  }
}

// Two halves of 128; in each, four runs of 32 whose low bits lie in 64 bytes and whose high bits
// share 32. A scale for every 16 numbers.
void block_q6_k(BlockReader in, float* out) {
  const uint8_t* low_bits = in.bytes(128);
  const uint8_t* high_bits = in.bytes(64);
  const uint8_t* scales = in.bytes(16);
  const float d = in.half();
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, run = i % 128 / 32, j = i % 32;
    const uint8_t byte = low_bits[half * 64 + run % 2 * 32 + j];
    const int four = run < 2 ? low(byte) : high(byte);
    const int two = high_bits[half * 32 + j] >> (2 * run) & 3;
    const auto scale = static_cast<int8_t>(scales[i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((four | two << 4) - 32);
  }
}

void dequantise_block(TensorType type, const std::byte* block, float* out) {
  const BlockReader in(block);
  switch (type) {
    case TensorType::F32:
      std::memcpy(out, block, sizeof *out);
      return;
    case TensorType::F16:
      *out = BlockReader(in).half();
      return;
    case TensorType::BF16: {
      tensor::Bf16 value{};
      std::memcpy(&value, block, sizeof value);
      *out = tensor::to_float(value);
      return;
    }
    case TensorType::Q4_0:
      return block_q4_0(in, out);
    case TensorType::Q4_1:
      return block_q4_1(in, out);
    case TensorType::Q5_0:
      return block_q5_0(in, out);
    case TensorType::Q5_1:
      return block_q5_1(in, out);
    case TensorType::Q8_0:
      return block_q8_0(in, out);
    case TensorType::Q4_K:
      return block_k(in, false, out);
    case TensorType::Q5_K:
      return block_k(in, true, out);
    case TensorType::Q6_K:
      return block_q6_k(in, out);
  }
}

// Nearest even; finite values beyond the largest become infinite.
uint16_t to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 2^16 and above
  if (magnitude < 0x38800000u) {                        // below 2^-14: in units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(units)));
  }
  const uint32_t rounded = magnitude + 0x0fffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

// As files hold it: denormals stay.
uint16_t to_bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class T>
std::byte* put(std::byte* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}

// Of a scale so small that blocks hold it as zero, anything will do that is finite.
float inverse(float d) { return std::fabs(d) >= 0x1p-126f ? 1.0f / d : 0.0f; }

void encode_q8_0(const float* x, std::byte* out) {
  float most = 0;
  for (int j = 0; j < 32; ++j) most = std::max(most, std::fabs(x[j]));
  const float d = most / 127.0f, inv = inverse(d);
  out = put(out, to_half(d));
  for (int j = 0; j < 32; ++j) out = put(out, static_cast<int8_t>(std::round(x[j] * inv)));
}

// The number of largest magnitude becomes -8 times the scale, exactly.
void encode_q4_0(const float* x, std::byte* out) {
  float most = 0;
  for (int j = 0; j < 32; ++j) {
    if (std::fabs(x[j]) > std::fabs(most)) most = x[j];
  }
  const float d = most / -8.0f, inv = inverse(d);
  out = put(out, to_half(d));
  const auto nibble = [&](float value) {
    return std::min(15, static_cast<int>(value * inv + 8.5f));
  };
  for (int j = 0; j < 16; ++j) {
    out = put(out, static_cast<uint8_t>(nibble(x[j]) | nibble(x[j + 16]) << 4));
  }
}

}  // namespace

bool is_readable(uint32_t type) {
  const NamedType* found = find_type(type);
  return found != nullptr && found->block.bytes > 0;
}

std::string name_of_type(uint32_t type) {
  const NamedType* found = find_type(type);
  return found == nullptr ? std::to_string(type) : std::string(found->name);
}

BlockSize block_size(TensorType type) {
  const NamedType* found = find_type(static_cast<uint32_t>(type));
  DSMOE_CHECK(found != nullptr && found->block.bytes > 0, "type {} has no blocks",
              static_cast<uint32_t>(type));
  return found->block;
}

TensorType parse_written_type(std::string_view name) {
  if (name == "f32") return TensorType::F32;
  if (name == "f16") return TensorType::F16;
  if (name == "bf16") return TensorType::BF16;
  if (name == "q8_0") return TensorType::Q8_0;
  if (name == "q4_0") return TensorType::Q4_0;
  fail(ErrorKind::usage, "{} is no type that is written; f32, f16, bf16, q8_0 and q4_0 are",
       in_quotes(name));
}

void dequantise(TensorType type, std::span<const std::byte> blocks, std::span<float> out) {
  const BlockSize block = block_size(type);
  const auto elements = static_cast<std::size_t>(block.elements);
  const auto bytes = static_cast<std::size_t>(block.bytes);
  DSMOE_CHECK(out.size() % elements == 0 && blocks.size() == out.size() / elements * bytes,
              "{} bytes of {} for {} numbers", blocks.size(), name_of(type), out.size());
  for (std::size_t i = 0; i * elements < out.size(); ++i) {
    dequantise_block(type, blocks.data() + i * bytes, out.data() + i * elements);
  }
}

float largest_magnitude(TensorType type) {
  constexpr float kHalf = 65504.0f;
  switch (type) {
    case TensorType::F16:
      return kHalf;
    case TensorType::Q8_0:
      return kHalf * 127;
    case TensorType::Q4_0:
      return kHalf * 8;
    case TensorType::BF16:
      return 0x1.fep127f;
    default:
      return std::numeric_limits<float>::max();
  }
}

void encode(TensorType type, std::span<const float> row, std::span<std::byte> out) {
  const BlockSize block = block_size(type);
  const auto elements = static_cast<std::size_t>(block.elements);
  DSMOE_CHECK(row.size() % elements == 0 &&
                  out.size() == row.size() / elements * static_cast<std::size_t>(block.bytes),
              "{} numbers as {} in {} bytes", row.size(), name_of(type), out.size());
  std::byte* at = out.data();
  for (std::size_t i = 0; i < row.size(); i += elements, at += block.bytes) {
    switch (type) {
      case TensorType::F32:
        put(at, row[i]);
        break;
      case TensorType::F16:
        put(at, to_half(row[i]));
        break;
      case TensorType::BF16:
        put(at, to_bf16_bits(row[i]));
        break;
      case TensorType::Q8_0:
        encode_q8_0(&row[i], at);
        break;
      case TensorType::Q4_0:
        encode_q4_0(&row[i], at);
        break;
      default:
        fail(ErrorKind::internal, "{} is not written", name_of(type));
    }
  }
}

}  // namespace dsmoe::store::gguf

// Counter-based normals, one stream per tensor name.
#include "model/initialise.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/elements.h"

namespace dsmoe::model {

using tensor::TensorView;

namespace {

// FNV-1a: fixed for ever, as every random model depends on it.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Integers, and scales that bring them to the size that initializer_range asks for.
void fill_integers(const Parameter& parameter, uint64_t seed, std::span<std::byte> out) {
  const Rng rng{.seed = seed ^ hash_name(parameter.name), .purpose = RngPurpose::parameter_init};
  for (std::size_t i = 0; i < out.size(); i += sizeof(Uint32x4)) {
    const Uint32x4 words = rng.at(i / sizeof(Uint32x4));
    std::memcpy(&out[i], &words, std::min(sizeof(Uint32x4), out.size() - i));
  }
}
void fill_scales(const ModelConfig& config, tensor::WeightCoding coding, std::span<std::byte> out) {
  const double deviation = coding == tensor::WeightCoding::int8 ? 74 : 4.6;  // of even integers
  // As many significant bits as `dsmoe quantize` gives a scale: one, and three.
  const unsigned kept = coding == tensor::WeightCoding::int8 ? 0xff80u : 0xffe0u;
  const tensor::Bf16 scale{static_cast<uint16_t>(
      tensor::to_bf16(static_cast<float>(config.initializer_range / deviation)).bits & kept)};
  for (std::size_t i = 0; i + 1 < out.size(); i += 2) std::memcpy(&out[i], &scale, 2);
}

TensorView room_for(const tensor::TensorSpec& spec, std::vector<std::byte>& bytes) {
  TensorView view{.dtype = spec.dtype, .shape = spec.shape};
  bytes.resize(view.num_bytes());
  view.data = bytes.data();
  return view;
}

}  // namespace

void initial_values(const ModelConfig& config, const Parameter& parameter, uint64_t seed,
                    uint64_t first, std::span<float> out) {
  if (parameter.initial != Initial::normal) {
    std::fill(out.begin(), out.end(), parameter.initial == Initial::ones ? 1.0f : 0.0f);
    return;
  }
  const Rng rng{.seed = seed ^ hash_name(parameter.name), .purpose = RngPurpose::parameter_init};
  rng.fill_normal(first, out);
  const auto deviation = static_cast<float>(config.initializer_range);
  for (float& value : out) value *= deviation;
}

InitialWeights::InitialWeights(const ModelConfig& config, uint64_t seed)
    : config_(config), seed_(seed) {
  if (config.torch_dtype == tensor::DType::F16) {
    fail(ErrorKind::input, "torch_dtype float16: random weights are made in bfloat16 or float32");
  }
}

StoredTensor InitialWeights::tensor(const Parameter& parameter) {
  const std::vector<tensor::TensorSpec> specs = stored_specs(config_, parameter);
  StoredTensor stored{.elements = room_for(specs.front(), values_)};
  if (parameter.coding != tensor::WeightCoding::plain) {
    stored.scale = room_for(specs.back(), scales_);
    fill_integers(parameter, seed_, values_);
    fill_scales(config_, parameter.coding, scales_);
    return stored;
  }
  const auto count = static_cast<std::size_t>(stored.elements.num_elements());
  std::vector<float> piece;
  for (std::size_t begin = 0; begin < count; begin += piece.size()) {
    piece.resize(std::min<std::size_t>(count - begin, 1 << 16));
    initial_values(config_, parameter, seed_, begin, piece);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      kernels::write_element(values_.data(), stored.elements.dtype, static_cast<int64_t>(begin + i),
                             piece[i]);
    }
  }
  return stored;
}

void InitialWeights::release(const Parameter&) { std::vector<std::byte>().swap(values_); }

}  // namespace dsmoe::model

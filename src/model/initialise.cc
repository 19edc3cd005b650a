// Counter-based normals, one stream per tensor name.
#include "model/initialise.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/elements.h"

namespace dsmoe::model {
namespace {

// FNV-1a: fixed for ever, as every random model depends on it.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Integers and scales whose product is of the size that initializer_range asks for.
void fill_quantised(const ModelConfig& config, const StoredParameter& stored, uint64_t seed,
                    std::span<std::byte> out) {
  if (stored.is_scale) {
    const auto coding = stored.parameter.coding;
    const double deviation = coding == tensor::WeightCoding::int8 ? 74 : 4.6;  // of even integers
    // As many significant bits as `dsmoe quantize` gives a scale: one, and three.
    const unsigned kept = coding == tensor::WeightCoding::int8 ? 0xff80u : 0xffe0u;
    const tensor::Bf16 scale{static_cast<uint16_t>(
        tensor::to_bf16(static_cast<float>(config.initializer_range / deviation)).bits & kept)};
    for (std::size_t i = 0; i + 1 < out.size(); i += 2) std::memcpy(&out[i], &scale, 2);
    return;
  }
  const Rng rng{.seed = seed ^ hash_name(stored.parameter.name),
                .purpose = RngPurpose::parameter_init};
  for (std::size_t i = 0; i < out.size(); i += sizeof(Uint32x4)) {
    const Uint32x4 words = rng.at(i / sizeof(Uint32x4));
    std::memcpy(&out[i], &words, std::min(sizeof(Uint32x4), out.size() - i));
  }
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
    : config_(config),
      seed_(seed),
      specs_(expected_tensors(config)),
      stored_(stored_parameters(config)) {
  if (config.torch_dtype == tensor::DType::F16) {
    fail(ErrorKind::input, "torch_dtype float16: random weights are made in bfloat16 or float32");
  }
}

tensor::TensorView InitialWeights::tensor(const std::string& name) {
  const auto found = stored_.find(name);
  if (found == stored_.end()) fail(ErrorKind::internal, "the model has no tensor {}", name);
  const auto& [spec, parameter, is_scale] = found->second;
  const auto count = static_cast<std::size_t>(spec.shape.num_elements());
  std::vector<std::byte>& bytes = is_scale ? scales_ : values_;
  bytes.resize(count * tensor::size_of(spec.dtype));
  const tensor::TensorView view{.data = bytes.data(), .dtype = spec.dtype, .shape = spec.shape};
  if (parameter.coding != tensor::WeightCoding::plain) {
    fill_quantised(config_, found->second, seed_, bytes);
    return view;
  }
  std::vector<float> piece;
  for (std::size_t begin = 0; begin < count; begin += piece.size()) {
    piece.resize(std::min<std::size_t>(count - begin, 1 << 16));
    initial_values(config_, parameter, seed_, begin, piece);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      kernels::write_element(bytes.data(), spec.dtype, static_cast<int64_t>(begin + i), piece[i]);
    }
  }
  return view;
}

void InitialWeights::release(const std::string&) { std::vector<std::byte>().swap(values_); }

}  // namespace dsmoe::model

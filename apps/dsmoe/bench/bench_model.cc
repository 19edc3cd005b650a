// Random weights as slices of one block of numbers: made at the speed of memory, not of a
// generator.
#include "bench/bench_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "model/parameter_source.h"
#include "store/hf_folder.h"

namespace dsmoe::app {
namespace {

using model::ModelConfig;
using tensor::DType;

// Every matrix is a slice of a block at a place of its own, so that experts differ. Neither the
// values nor their distribution matter to a measurement, only that they are not zero and that
// routing spreads: weights whose mean is not zero, or that outweigh the embedding, would turn all
// tokens the same way.
class SlicedWeights : public model::ParameterSource {
 public:
  explicit SlicedWeights(const ModelConfig& config) : config_(config) {
    std::size_t largest = 0, most_integers = 0;
    for (const tensor::TensorSpec& spec : model::expected_tensors(config)) {
      const auto bytes =
          static_cast<std::size_t>(spec.shape.num_elements()) * tensor::size_of(spec.dtype);
      largest = std::max(largest, bytes);
      if (is_integer(spec)) most_integers = std::max(most_integers, bytes);
    }
    block_.resize(largest / 2 + kSlack);
    fill(static_cast<float>(config.initializer_range));
    if (most_integers == 0) return;
    integers_.resize(most_integers + kSlack);
    const bool int4 = config.quantization.projections == tensor::WeightCoding::int4;
    fill_integers(int4);
    scale_ = static_cast<float>(std::exp2(std::round(
        std::log2(config.initializer_range / (int4 ? kDeviationInt4 : kDeviationInt8)))));
  }

  model::StoredTensor tensor(const model::Parameter& parameter) override {
    const std::vector<tensor::TensorSpec> specs = model::stored_specs(config_, parameter);
    const tensor::TensorSpec& spec = specs.front();
    if (parameter.initial != model::Initial::normal || spec.dtype == DType::F32) {
      return {.elements = constants(spec, parameter.initial)};
    }
    next_ = (next_ + kStride) % kSlack;
    if (is_integer(spec)) {
      return {
          .elements = {.data = integers_.data() + next_, .dtype = spec.dtype, .shape = spec.shape},
          .scale = scales(specs.back())};
    }
    return {.elements = {.data = block_.data() + next_, .dtype = spec.dtype, .shape = spec.shape}};
  }

 private:
  static constexpr std::size_t kSlack = std::size_t{1} << 22;  // numbers
  static constexpr std::size_t kStride = 1'234'568;            // multiple of 8: 16-byte pieces

  // Sums of two uniform numbers of variance 1/2 each: nearly normal, four at a time from one word.
  void fill(float deviation) {
    uint64_t state = 1;
    for (std::size_t i = 0; i < block_.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto a = static_cast<float>(state >> 32 & 0xffff) / 65536.0f - 0.5f;
      const auto b = static_cast<float>(state >> 48) / 65536.0f - 0.5f;
      block_[i] = tensor::to_bf16((a + b) * 2.449f * deviation).bits;
    }
  }

  static bool is_integer(const tensor::TensorSpec& spec) {
    return spec.dtype == DType::I8 || spec.dtype == DType::U8;
  }

  // Even over -127..127, or -7..7 in both halves of a byte. A scale that is a power of two brings
  // them to the deviation of the block.
  static constexpr double kDeviationInt8 = 73.6, kDeviationInt4 = 4.32;
  void fill_integers(bool halves) {
    uint64_t state = 1;
    for (uint8_t& byte : integers_) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t random = state >> 32;
      const auto signed_below = [&](uint64_t part, uint64_t most) {
        return part * (2 * most + 1) / 65536 - most;
      };
      byte = static_cast<uint8_t>(halves ? (signed_below(random & 0xffff, 7) & 15) |
                                               signed_below(random >> 16, 7) << 4
                                         : signed_below(random >> 16, 127));
    }
  }

  // Norms 1, biases 0; fp32 matrices are filled like the block.
  tensor::TensorView constants(const tensor::TensorSpec& spec, model::Initial initial) {
    values_.assign(static_cast<std::size_t>(spec.shape.num_elements()),
                   initial == model::Initial::ones ? 1.0f : 0.0f);
    if (initial == model::Initial::normal) {
      for (std::size_t i = 0; i < values_.size(); ++i) {
        values_[i] = tensor::to_float({block_[(next_ + i) % block_.size()]});
      }
    }
    if (spec.dtype == DType::F32) {
      return {.data = values_.data(), .dtype = DType::F32, .shape = spec.shape};
    }
    return rounded(spec.shape);
  }

  tensor::TensorView scales(const tensor::TensorSpec& spec) {
    values_.assign(static_cast<std::size_t>(spec.shape.num_elements()), scale_);
    return rounded(spec.shape);
  }

  tensor::TensorView rounded(const tensor::Shape& shape) {
    rounded_.resize(values_.size());
    std::transform(values_.begin(), values_.end(), rounded_.begin(),
                   [](float value) { return tensor::to_bf16(value).bits; });
    return {.data = rounded_.data(), .dtype = DType::BF16, .shape = shape};
  }

  ModelConfig config_;
  std::vector<uint16_t> block_;
  std::vector<uint8_t> integers_;
  float scale_ = 0;  // of the integers
  std::vector<float> values_;
  std::vector<uint16_t> rounded_;
  std::size_t next_ = 0;
};

std::string weights_name(const model::Model& model) {
  const model::Quantization& quantization = model.config.quantization;
  return std::string(quantization ? tensor::name_of(quantization.projections)
                                  : tensor::name_of(model.operand));
}

}  // namespace

BenchModel load_bench_model(const Engine& engine, const CommonOptions& options,
                            const RandomModel& random) {
  const std::filesystem::path path = options.model;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(path, ignored);
  BenchModel bench{
      .name = is_file ? path.stem().string()
                      : (path.has_filename() ? path : path.parent_path()).filename().string()};
  if (store::has_weights(path)) {
    if (random.num_layers > 0 || random.weights != "bf16") {
      fail(ErrorKind::usage, "--layers and --weights need a config without weights; {} has some",
           options.model);
    }
    bench.model = engine.load(options);
    bench.weights = weights_name(*bench.model);
    return bench;
  }
  ModelConfig config = model::read_config(path);
  if (random.num_layers > config.num_hidden_layers) {
    fail(ErrorKind::usage, "--layers {}: the model has {}", random.num_layers,
         config.num_hidden_layers);
  }
  if (random.num_layers > 0) {
    config.num_hidden_layers = random.num_layers;
    bench.name += fmt::format(", {} layers", random.num_layers);
  }
  config.torch_dtype = DType::BF16;
  if (random.weights != "bf16") {
    config.quantization = {.projections = random.weights == "int8" ? tensor::WeightCoding::int8
                                                                   : tensor::WeightCoding::int4,
                           .head = config.tie_word_embeddings ? tensor::WeightCoding::plain
                                                              : tensor::WeightCoding::int8};
  }
  SlicedWeights source(config);
  bench.model = model::make_model(
      engine.context(), config, source,
      {.operand = options.dtype == "fp32" ? DType::F32 : DType::BF16, .context = options.context});
  bench.weights = weights_name(*bench.model) + ", random";
  return bench;
}

}  // namespace dsmoe::app

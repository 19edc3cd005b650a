// Frequencies in fp32 as the published models have them; sines in double, rounded once.
#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/functions.h"

namespace dsmoe::model {
namespace {

double rope_base(const ModelConfig& config, int64_t context) {
  if (config.rope_kind != RopeKind::dynamic || context <= config.max_position_embeddings)
    return config.rope_theta;
  const double d = static_cast<double>(config.rotary_width());
  const double ratio =
      static_cast<double>(context) / static_cast<double>(config.max_position_embeddings);
  return config.rope_theta *
         pow_f64(config.rope_factor * ratio - (config.rope_factor - 1.0), d / (d - 2.0));
}

// The pair whose angle makes so many turns over the original context.
double pair_of_turns(const ModelConfig& config, double turns) {
  const auto d = static_cast<double>(config.rotary_width());
  const auto positions = static_cast<double>(config.yarn.original_positions);
  return d * log_f64(positions / (turns * 2 * std::numbers::pi)) / (2 * log_f64(config.rope_theta));
}

// Pairs that turn often keep their frequency, those that turn less than once take that of `linear`.
double yarn_frequency(const ModelConfig& config, int64_t pair, double frequency) {
  double low = pair_of_turns(config, config.yarn.beta_fast);
  double high = pair_of_turns(config, config.yarn.beta_slow);
  if (config.yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.rotary_width() - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / config.rope_factor * ramp + frequency * (1 - ramp);
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * log_f64(factor) + 1.0;
}

// What sines and cosines are multiplied by.
double yarn_attention_factor(const ModelConfig& config) {
  const Yarn& yarn = config.yarn;
  if (config.rope_kind != RopeKind::yarn) return 1;
  if (yarn.attention_factor != 0) return yarn.attention_factor;
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) return yarn_mscale(config.rope_factor, 1);
  return yarn_mscale(config.rope_factor, yarn.mscale) /
         yarn_mscale(config.rope_factor, yarn.mscale_all_dim);
}

}  // namespace

double yarn_score_factor(const ModelConfig& config) {
  const double mscale = config.yarn.mscale_all_dim;
  if (config.rope_kind != RopeKind::yarn || config.kv_lora_rank == 0 || mscale == 0) return 1;
  const double factor = yarn_mscale(config.rope_factor, mscale);
  return factor * factor;
}

attention::RopeTable make_rope_table(const ModelConfig& config, int64_t context,
                                     tensor::Arena& host_arena) {
  const int64_t width = config.rotary_width();
  const int64_t half = width / 2;
  const attention::RopeTable table{
      .cos = host_arena.tensor("rope", tensor::DType::F32, {context, half}),
      .sin = host_arena.tensor("rope", tensor::DType::F32, {context, half})};
  const double base = rope_base(config, context);
  const double size = yarn_attention_factor(config);
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(width);
    double exact = 1.0 / pow_f64(base, exponent);
    if (config.rope_kind == RopeKind::yarn) exact = yarn_frequency(config, i, exact);
    const auto frequency = static_cast<float>(exact);
    for (int64_t position = 0; position < context; ++position) {
      auto place = static_cast<float>(position);
      if (config.rope_kind == RopeKind::linear)
        place = place / static_cast<float>(config.rope_factor);
      const float angle = place * frequency;
      table.cos.as<float>()[position * half + i] = static_cast<float>(cos_f64(angle) * size);
      table.sin.as<float>()[position * half + i] = static_cast<float>(sin_f64(angle) * size);
    }
  }
  return table;
}

}  // namespace dsmoe::model

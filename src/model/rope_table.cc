// Frequencies in fp32 as the published model has them; sines in double, rounded once.
#include "model/rope_table.h"

#include "base/functions.h"

namespace dsmoe::model {
namespace {

double rope_base(const ModelConfig& config, int64_t context) {
  if (config.rope_kind != RopeKind::dynamic || context <= config.max_position_embeddings)
    return config.rope_theta;
  const double d = static_cast<double>(config.head_dim);
  const double ratio =
      static_cast<double>(context) / static_cast<double>(config.max_position_embeddings);
  return config.rope_theta *
         pow_f64(config.rope_factor * ratio - (config.rope_factor - 1.0), d / (d - 2.0));
}

}  // namespace

attention::RopeTable make_rope_table(const ModelConfig& config, int64_t context,
                                     tensor::Arena& host_arena) {
  const int64_t half = config.head_dim / 2;
  const attention::RopeTable table{
      .cos = host_arena.tensor("rope", tensor::DType::F32, {context, half}),
      .sin = host_arena.tensor("rope", tensor::DType::F32, {context, half})};
  const double base = rope_base(config, context);
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(config.head_dim);
    const auto frequency = static_cast<float>(1.0 / pow_f64(base, exponent));
    for (int64_t position = 0; position < context; ++position) {
      auto place = static_cast<float>(position);
      if (config.rope_kind == RopeKind::linear)
        place = place / static_cast<float>(config.rope_factor);
      const float angle = place * frequency;
      table.cos.as<float>()[position * half + i] = static_cast<float>(cos_f64(angle));
      table.sin.as<float>()[position * half + i] = static_cast<float>(sin_f64(angle));
    }
  }
  return table;
}

}  // namespace dsmoe::model

// Sines and cosines of every position, for all layers and backends.
#pragma once

#include "attention/layer.h"
#include "model/config.h"
#include "tensor/arena.h"

namespace dsmoe::model {

// For positions [0, context), in host memory. Plain, linear (positions divided by the factor),
// dynamic (a larger base when `context` exceeds max_position_embeddings), or yarn (frequencies
// between those of plain and linear, and sines and cosines that are scaled); see docs/numerics.md.
attention::RopeTable make_rope_table(const ModelConfig& config, int64_t context,
                                     tensor::Arena& host_arena);

// What yarn multiplies the scores of latent attention by; else 1.
double yarn_score_factor(const ModelConfig& config);

}  // namespace dsmoe::model

// Sines and cosines of every position, for all layers and backends.
#pragma once

#include "attention/layer.h"
#include "model/config.h"
#include "tensor/arena.h"

namespace dsmoe::model {

// For positions [0, context), in host memory. Plain, linear (positions divided by the factor), or
// dynamic (a larger base when `context` exceeds max_position_embeddings; see docs/numerics.md).
attention::RopeTable make_rope_table(const ModelConfig& config, int64_t context,
                                     tensor::Arena& host_arena);

}  // namespace dsmoe::model

// Sines and cosines of every position, for all layers and backends.
#pragma once

#include "model/config.h"
#include "tensor/arena.h"

namespace dsmoe::model {

struct RopeTable {
  tensor::TensorView cos;  // [positions, head_dim / 2] F32
  tensor::TensorView sin;  // [positions, head_dim / 2] F32
};

// For positions [0, context), in host memory. Plain, linear (positions divided by the factor), or
// dynamic (a larger base when `context` exceeds max_position_embeddings; see docs/numerics.md).
RopeTable make_rope_table(const ModelConfig& config, int64_t context, tensor::Arena& host_arena);

}  // namespace dsmoe::model

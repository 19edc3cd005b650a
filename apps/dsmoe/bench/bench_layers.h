// One MoE layer on a GPU beside dense products of the same size, and the GPU's own limits.
#pragma once

#include <cstdint>

#include "kernels/context.h"

namespace dsmoe::app {

struct GpuLimits {
  double read = 0;   // bytes per second, reading alone
  double copy = 0;   // bytes read and written per second
  double dense = 0;  // FLOP/s of a large dense bf16 product through cuBLASLt; 0: not installed
};
GpuLimits measure_gpu_limits(const kernels::Context& context);

struct LayerShape {
  int64_t hidden = 0;
  int64_t experts = 0;  // routed
  int64_t top_k = 0;
  int64_t width = 0;         // of a routed expert
  int64_t shared_width = 0;  // of all shared experts together; 0: none
};

struct LayerFigure {
  int64_t tokens = 0;
  double seconds = 0;        // of the layer: router, plan, experts, combine
  double dense_seconds = 0;  // of dense products of the same FLOPs; 0: cuBLASLt is not installed
  double bytes = 0;          // of weights that the tokens' experts hold
  double flops = 0;
  int64_t experts = 0;  // distinct ones
};

// The layer as captured graphs over rotating inputs, and up to 64 tokens four layers' weights, so
// that nothing sits in the second-level cache; dense products alternate with it. Medians.
LayerFigure measure_layer(const kernels::Context& context, const LayerShape& shape, int64_t tokens);

}  // namespace dsmoe::app

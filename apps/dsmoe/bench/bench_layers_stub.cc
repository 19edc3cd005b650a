// Layer measurements of a build without CUDA.
#include "bench/bench_layers.h"

#include "base/error.h"

namespace dsmoe::app {
namespace {

[[noreturn]] void refuse() { fail(ErrorKind::usage, "built without CUDA"); }

}  // namespace

GpuLimits measure_gpu_limits(const kernels::Context&) { refuse(); }
LayerFigure measure_layer(const kernels::Context&, const LayerShape&, int64_t) { refuse(); }

}  // namespace dsmoe::app

// CPU probes in turns; the GPU's in one go.
#include "bench/bench_limits.h"

#include <fmt/core.h>

namespace dsmoe::app {

using kernels::cpu::MatrixType;

BenchLimits::BenchLimits(const kernels::Context& context, tensor::DType operand)
    : context_(context) {
  if (context.table->device == kernels::Device::cuda) return;
  read_.emplace(*context.pool);
  multiply_.emplace(*context.pool,
                    operand == tensor::DType::BF16 ? MatrixType::bf16 : MatrixType::fp32);
}

void BenchLimits::measure(double seconds) {
  if (read_) {
    read_->measure(seconds / 2);
    multiply_->measure(seconds / 2);
  } else if (!gpu_) {
    gpu_ = measure_gpu_limits(context_);
  }
}

double BenchLimits::bandwidth() const { return read_ ? read_->median() : gpu_ ? gpu_->read : 0; }
double BenchLimits::matrix() const {
  return multiply_ ? multiply_->median() : gpu_ ? gpu_->dense : 0;
}

std::string BenchLimits::describe() const {
  if (read_) {
    return fmt::format("reads {:.1f} GB/s ({}), products {:.2f} TFLOP/s ({})", bandwidth() / 1e9,
                       read_->name(), matrix() / 1e12, multiply_->name());
  }
  return fmt::format(
      "reads {:.2f} TB/s, copies {:.2f} TB/s (read + written), dense products {}",
      bandwidth() / 1e12, gpu_ ? gpu_->copy / 1e12 : 0,
      matrix() > 0 ? fmt::format("{:.0f} TFLOP/s", matrix() / 1e12) : "not measured: no cuBLASLt");
}

}  // namespace dsmoe::app

// The limits a bench compares with, measured in slices between the runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bench/bench_layers.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/table.h"

namespace dsmoe::app {

class BenchLimits {
 public:
  BenchLimits(const kernels::Context& context, tensor::DType operand);

  // Both probes, for about `seconds` together. A GPU is measured once.
  void measure(double seconds);

  double bandwidth() const;  // bytes per second
  double matrix() const;     // FLOP/s; 0: unknown
  std::string describe() const;
  const std::optional<GpuLimits>& gpu() const { return gpu_; }

 private:
  kernels::Context context_;
  std::optional<kernels::cpu::ReadProbe> read_;
  std::optional<kernels::cpu::MatrixProbe> multiply_;
  std::optional<GpuLimits> gpu_;
};

}  // namespace dsmoe::app

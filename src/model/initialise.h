// Random starting weights: what training begins with, and models for demonstrations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameter_source.h"

namespace dsmoe::model {

// Elements [first, first + out.size()) of a parameter before training: N(0, initializer_range),
// ones or zeros, as the inventory says. Each is a function of (seed, name, place) alone, so neither
// other parameters nor the pieces one is made in change it.
void initial_values(const ModelConfig& config, const Parameter& parameter, uint64_t seed,
                    uint64_t first, std::span<float> out);

// All parameters of a model, made when they are asked for, in the type config.torch_dtype stores
// (F16: refused with Error(input), as weights are kept in BF16 or F32). Quantised weights, which
// nothing trains, are even random integers: enough to measure a model of a given shape.
class InitialWeights : public ParameterSource {
 public:
  InitialWeights(const ModelConfig& config, uint64_t seed);

  StoredTensor tensor(const Parameter& parameter) override;
  void release(const Parameter& parameter) override;

 private:
  ModelConfig config_;
  uint64_t seed_;
  std::vector<std::byte> values_;
  std::vector<std::byte> scales_;  // beside the integers in values_
};

}  // namespace dsmoe::model

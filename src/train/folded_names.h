// Many tensors on few lines: names that differ in numbers alone are one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensor/tensor_spec.h"

namespace dsmoe::train {

// "model.layers.1-27.mlp.experts.0-63.down_proj.weight [2048, 1408]: 1728 tensors", in the order
// in which the names first come.
std::vector<std::string> folded_names(std::span<const tensor::TensorSpec> specs);

}  // namespace dsmoe::train

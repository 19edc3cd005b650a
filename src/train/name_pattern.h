// Tensor-name globs: which tensors a run trains.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensor/tensor_spec.h"

namespace dsmoe::train {

// '*' any characters, '?' one, '[...]' a set, as in a shell; '.' is nothing special.
bool matches(const std::string& pattern, const std::string& name);

// Those that match any of the patterns, in the given order; no patterns: all. A pattern that
// matches nothing is Error(usage).
std::vector<tensor::TensorSpec> select_tensors(std::span<const tensor::TensorSpec> tensors,
                                               std::span<const std::string> patterns);

}  // namespace dsmoe::train

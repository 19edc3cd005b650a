// TensorSpec: what a tensor is called and how it is laid out, without its data.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace dsmoe::tensor {

// `model` says which tensors a configuration has, `store` checks and writes them: this is the word
// they share.
struct TensorSpec {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
};

}  // namespace dsmoe::tensor

// TensorSpec: what a tensor is called and how it is laid out, without its data.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace dsmoe::tensor {

// floating: F32, F16 or BF16, whichever a file holds. exact: dtype and no other.
enum class TypeRule : uint8_t { floating, exact };

// `model` says which tensors a configuration has, `store` checks and writes them: this is the word
// they share.
struct TensorSpec {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  TypeRule type_rule = TypeRule::floating;
};

}  // namespace dsmoe::tensor

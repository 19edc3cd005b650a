// Where the numbers of parameters come from: files, or numbers made up in memory.
#pragma once

#include <span>

#include "model/inventory.h"
#include "tensor/tensor.h"

namespace dsmoe::model {

// Rows of a parameter, row-major, in host memory, perhaps unaligned; integers come with their
// scales.
struct StoredTensor {
  tensor::TensorView elements;
  tensor::TensorView scale;  // [rows, groups] BF16, or absent
  int64_t row_begin = 0;     // within the parameter
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // What will be asked for, in this order: a source on a disk may begin to read.
  virtual void expect(std::span<const Parameter* const> /*parameters*/) {}
  // All rows of the parameter, valid until it is released or another is asked for.
  virtual StoredTensor tensor(const Parameter& parameter) = 0;
  virtual void release(const Parameter& /*parameter*/) {}
  // Rows [begin, end) will not be read again: a source that holds them in pages may give those
  // back.
  virtual void release_rows(const Parameter& /*parameter*/, int64_t /*begin*/, int64_t /*end*/) {}
};

}  // namespace dsmoe::model

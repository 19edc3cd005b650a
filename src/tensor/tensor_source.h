// Where stored tensors come from: a checkpoint folder, or numbers made up in memory.
#pragma once

#include <span>
#include <string>

#include "tensor/tensor.h"

namespace dsmoe::tensor {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The names that will be asked for, in this order: a source on a disk may begin to read.
  virtual void expect(std::span<const std::string> /*names*/) {}
  // The named tensor, row-major, in host memory, perhaps unaligned, valid until released. Unknown
  // names throw.
  virtual TensorView tensor(const std::string& name) = 0;
  virtual void release(const std::string& name) = 0;
  // Rows [begin, end) will not be read again: a source that holds them in pages may give those
  // back.
  virtual void release_rows(const std::string& /*name*/, int64_t /*begin*/, int64_t /*end*/) {}
};

}  // namespace dsmoe::tensor

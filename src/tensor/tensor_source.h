// Named tensors of files: a checkpoint folder, or any other format that lists its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace dsmoe::tensor {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // What it is called in messages.
  virtual std::string what() const = 0;
  // The names that will be asked for, in this order: a source on a disk may begin to read.
  virtual void expect(std::vector<std::string> /*names*/) {}
  // The named tensor, row-major, in host memory, perhaps unaligned, valid until released. Unknown
  // names throw.
  virtual TensorView tensor(const std::string& name) = 0;
  // Its shape, without its numbers.
  virtual Shape shape(const std::string& name) { return tensor(name).shape; }
  // Elements [first, first + count) of it in a row, valid until released or another is asked for. A
  // source that makes numbers out of what files hold makes these alone.
  virtual TensorView part(const std::string& name, int64_t first, int64_t count) {
    TensorView view = tensor(name);
    view.data =
        static_cast<std::byte*>(view.data) + static_cast<std::size_t>(first) * size_of(view.dtype);
    view.shape = {count};
    return view;
  }
  virtual void release(const std::string& name) = 0;
  // Elements [first, first + count) will not be read again: a source that holds them in pages may
  // give those back.
  virtual void release_part(const std::string& /*name*/, int64_t /*first*/, int64_t /*count*/) {}
};

}  // namespace dsmoe::tensor

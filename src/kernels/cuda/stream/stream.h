// A stream of the device, and all that is kept for it from one op to the next.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <typeindex>

#include "kernels/context.h"
#include "kernels/cuda/cuda_table.h"

namespace dsmoe::kernels::cuda {

// What Context::stream points to. A stream belongs to one thread at a time, so its states do.
struct Stream {
  cudaStream_t handle = nullptr;
  KernelsThatWait waits = KernelsThatWait::refused;
  uint64_t launches = 0;                                    // so far
  std::map<std::type_index, std::shared_ptr<void>> states;  // by their type
};

inline Stream& own_stream(const Context& context) { return *static_cast<Stream*>(context.stream); }
inline cudaStream_t stream_of(const Context& context) { return own_stream(context).handle; }
inline bool waits_allowed(const Context& context) {
  return own_stream(context).waits == KernelsThatWait::allowed;
}

Stream* make_stream(KernelsThatWait waits);
// Blocks the host until the stream's work is done.
void release_stream(Stream* stream);

// The State of the context's stream, made when first asked for.
template <class State>
State& state_of(const Context& context) {
  std::shared_ptr<void>& slot = own_stream(context).states[typeid(State)];
  if (!slot) slot = std::make_shared<State>();
  return *static_cast<State*>(slot.get());
}

// Memory of the device, zero when it is there.
void* allocate(std::size_t bytes);
void release(void* data, std::size_t bytes);

// What the kernels of one stream leave for the next, such as counters: zero at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count)
      : bytes_(count * sizeof(T)), data_(static_cast<T*>(allocate(bytes_))) {}
  ~DeviceArray() { release(data_, bytes_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace dsmoe::kernels::cuda

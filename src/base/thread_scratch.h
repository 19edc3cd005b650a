// Working memory of a thread: what one piece of work leaves there the next one overwrites.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsmoe {

// At least so many bytes of the calling thread, 64-byte aligned, kept for its next call and freed
// with the thread. A call that asks for more than any before loses what lay there.
void* thread_scratch_bytes(std::size_t bytes);

template <class T = float>
T* thread_scratch(int64_t count) {
  return static_cast<T*>(thread_scratch_bytes(static_cast<std::size_t>(count) * sizeof(T)));
}

}  // namespace dsmoe

// 32 bits that nobody can guess: ids of requests, seeds of answers.
#pragma once

#include <cstdint>
#include <random>

namespace dsmoe::serve {

// One device per thread: making one asks the CPU what it can do, and where a hypervisor answers
// that, it takes as long as the rest of a refused request.
inline uint32_t random_word() {
  static thread_local std::random_device device;
  return device();
}

}  // namespace dsmoe::serve

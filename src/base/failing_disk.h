// For tests: calls that write, counted; the chosen one fails. Link failing_disk.cc into the test,
// whose calls then all go through it.
#pragma once

#include <cstdint>

namespace dsmoe {

struct FailingDisk {
  static inline int64_t countdown = -1;  // calls until one fails; below 0: never
  static inline int failure = 0;         // its errno
};

}  // namespace dsmoe

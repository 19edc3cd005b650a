// Two thresholds, which the C library does not move once they were set.
#include "base/memory_return.h"

#include <malloc.h>

namespace dsmoe {

void give_freed_memory_back() {
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

}  // namespace dsmoe

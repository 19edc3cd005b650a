// Walks over rows sixteen elements at a time, the last step with fewer.
#pragma once

#include "kernels/cpu/lanes.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// body(i, count) over the row in steps of 16; count is 16 but at the end.
template <class Body>
DSMOE_HD void for_each_sixteen(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) body(i, int64_t{16});
  if (i < size) body(i, size - i);
}

DSMOE_HD F32x16 load_up_to(const float* p, int64_t count) {
  return count == 16 ? load(p) : load_first(p, count);
}
DSMOE_HD void store_up_to(float* p, F32x16 a, int64_t count) {
  if (count == 16) {
    store(p, a);
  } else {
    store_first(p, a, count);
  }
}
DSMOE_HD F32x16 load_up_to(const uint16_t* p, int64_t count) {
  return count == 16 ? load_bf16(p) : load_first_bf16(p, count);
}
DSMOE_HD void store_up_to(uint16_t* p, F32x16 a, int64_t count) {
  if (count == 16) {
    store_bf16(p, a);
  } else {
    store_first_bf16(p, a, count);
  }
}

// Row reductions: a lane beyond the row's end keeps its value.
template <class Step>
DSMOE_HD F32x16 fold(const float* s, int64_t size, F32x16 lanes, Step&& step) {
  for_each_sixteen(
      size, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const F32x16 next = step(load_up_to(s + i, count), lanes);
        lanes = count == 16 ? next : first_lanes(count, next, lanes);
      });
  return lanes;
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

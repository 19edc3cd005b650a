// An attention part in numbers.
#pragma once

#include <cmath>

#include "kernels/kv_pages.h"

namespace dsmoe::attention {

// Query head h reads KV head h / (heads / kv.heads). Queries are as wide as keys, outputs as
// values.
struct Shape {
  int64_t hidden = 0;
  int64_t heads = 0;
  kernels::KvShape kv;

  int64_t q_width() const { return heads * kv.key_width; }
  int64_t out_width() const { return heads * kv.value_width; }
  int64_t qkv_width() const { return q_width() + kv.projected_width(); }
  // Of scores: 1 / sqrt(key_width), rounded once.
  float scale() const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(kv.key_width)));
  }
};

}  // namespace dsmoe::attention

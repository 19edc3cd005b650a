// An attention part in numbers.
#pragma once

#include <cmath>

#include "kernels/kv_pages.h"
#include "kernels/passes.h"
#include "kernels/rope.h"

namespace dsmoe::attention {

// How latent attention is computed: two policies with other roundings (docs/numerics.md).
enum class LatentForm : uint8_t {
  expanded,  // keys and values of every head are made from the latent: training
  absorbed,  // queries go to the latent, which is key and value of all heads: inference
};
inline LatentForm latent_form(kernels::Passes passes) {
  return passes == kernels::Passes::forward ? LatentForm::absorbed : LatentForm::expanded;
}

// Keys and values are made from a latent of kv_rank numbers, and from `rope` numbers that all heads
// share; queries from one of q_rank numbers, or from x where q_rank is 0. A head's query and key
// are `nope` numbers that do not turn, then `rope` that do.
struct Latent {
  int64_t kv_rank = 0;  // 0: grouped attention
  int64_t q_rank = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  LatentForm form = LatentForm::expanded;

  explicit operator bool() const { return kv_rank > 0; }
  bool is_absorbed() const { return kv_rank > 0 && form == LatentForm::absorbed; }
  int64_t key() const { return nope + rope; }
};

// Query head h reads KV head h / (heads / kv.heads). Queries are as wide as keys, outputs as
// values.
struct Shape {
  int64_t hidden = 0;
  int64_t heads = 0;
  kernels::KvShape kv;
  kernels::Rotation rotation;
  bool has_qk_norm = false;  // of each head of q and k, before the rotation
  Latent latent;
  double norm_eps = 1e-6;   // of these norms
  double score_factor = 1;  // beside 1 / sqrt(width of a query)
  bool turns_whole_heads = true;

  int64_t q_width() const { return heads * kv.key_width; }
  int64_t k_width() const { return kv.heads * kv.key_width; }
  int64_t out_width() const { return heads * kv.value_width; }
  int64_t qkv_width() const { return q_width() + kv.projected_width(); }
  // What x is multiplied to: q, k and v; or q or its latent, and the latent of keys and values.
  int64_t q_part() const {
    if (!latent) return q_width();
    return latent.q_rank > 0 ? latent.q_rank : heads * latent.key();
  }
  int64_t projected_width() const {
    return latent ? q_part() + latent.kv_rank + latent.rope : qkv_width();
  }
  // What the last projection reads.
  int64_t merged_width() const { return latent ? heads * latent.value : out_width(); }
  // Plain grouped attention: what every device computes.
  bool is_plain() const { return !latent && !has_qk_norm && turns_whole_heads; }
  // Of scores, rounded once.
  float scale() const {
    const auto width = static_cast<double>(latent ? latent.key() : kv.key_width);
    return static_cast<float>(score_factor / std::sqrt(width));
  }
};

}  // namespace dsmoe::attention

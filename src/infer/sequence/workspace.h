// How much of a long input is computed at once: the same limits for every reader of logits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dsmoe::infer {

// Enough rows to keep the products busy; the bits do not depend on it.
inline constexpr int64_t kChunkTokens = 512;

// Rows of logits held at once: at most 32 MiB, so that a long text never needs its full logits.
inline int64_t logit_rows(int64_t vocabulary, int64_t max_rows) {
  return std::clamp((int64_t{32} << 20) / (4 * vocabulary), int64_t{1}, max_rows);
}

}  // namespace dsmoe::infer

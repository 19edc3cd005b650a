// The constraint's tokens, and those that stop.
#include "infer/sequence/guide.h"

#include <algorithm>

namespace dsmoe::infer {

std::span<const uint64_t> Guide::allowed(int64_t tokens_left, MayStop may_stop) {
  matcher_.allowed(tokens_left, bits_);
  const bool stops = may_stop == MayStop::yes && matcher_.may_end();
  for (const int32_t token : stop_ids_) {
    uint64_t& word = bits_[static_cast<std::size_t>(token) / 64];
    const uint64_t bit = uint64_t{1} << (token % 64);
    word = stops ? word | bit : word & ~bit;
  }
  const bool any = std::any_of(bits_.begin(), bits_.end(), [](uint64_t word) { return word != 0; });
  return any ? std::span<const uint64_t>(bits_) : std::span<const uint64_t>();
}

}  // namespace dsmoe::infer

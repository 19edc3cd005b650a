// The tokens that the rules allow, and those that stop.
#include "infer/sequence/guide.h"

#include <algorithm>

namespace dsmoe::infer {

std::span<const uint64_t> Guide::allowed(int64_t tokens_left, MayStop may_stop) {
  constrain::Matcher* const matcher = std::get_if<constrain::Matcher>(&rules_);
  if (matcher != nullptr) {
    matcher->allowed(tokens_left, bits_);
  } else {
    std::get<constrain::Restrained>(rules_).allowed(bits_);
  }
  const bool stops = may_stop == MayStop::yes && (matcher == nullptr || matcher->may_end());
  for (const int32_t token : stop_ids_) {
    uint64_t& word = bits_[static_cast<std::size_t>(token) / 64];
    const uint64_t bit = uint64_t{1} << (token % 64);
    if (!stops) word &= ~bit;
    if (stops && matcher != nullptr) word |= bit;
  }
  const bool any = std::any_of(bits_.begin(), bits_.end(), [](uint64_t word) { return word != 0; });
  return any ? std::span<const uint64_t>(bits_) : std::span<const uint64_t>();
}

}  // namespace dsmoe::infer

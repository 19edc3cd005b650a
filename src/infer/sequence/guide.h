// Keeps one answer to its constraint: which tokens may come next, and when it is over.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "constrain/constraint.h"

namespace dsmoe::infer {

class Guide {
 public:
  enum class MayStop { yes, no };

  // `stop_ids` may come where the answer may end, and nowhere else. Both must outlive it.
  Guide(std::shared_ptr<const constrain::Constraint> constraint, std::span<const int32_t> stop_ids)
      : matcher_(std::move(constraint)), stop_ids_(stop_ids) {}

  // The tokens of which one may come next, when so many may come with it; without any the answer
  // is over. Valid until the next call.
  std::span<const uint64_t> allowed(int64_t tokens_left, MayStop may_stop);
  void take(int32_t token) { matcher_.take(token); }

  bool may_end() const { return matcher_.may_end(); }
  bool must_end() const { return matcher_.must_end(); }

 private:
  constrain::Matcher matcher_;
  std::span<const int32_t> stop_ids_;
  constrain::TokenBits bits_;
};

}  // namespace dsmoe::infer

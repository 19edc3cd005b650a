// Keeps one answer to what was asked of its text: which tokens may come next, and when it is over.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "constrain/constraint.h"
#include "constrain/restriction.h"

namespace dsmoe::infer {

class Guide {
 public:
  enum class MayStop { yes, no };

  // `stop_ids` may come where the answer may end, and nowhere else; they must outlive it.
  Guide(std::shared_ptr<const constrain::Constraint> constraint, std::span<const int32_t> stop_ids)
      : rules_(std::in_place_type<constrain::Matcher>, std::move(constraint)),
        stop_ids_(stop_ids) {}
  // An answer may end anywhere, and nothing says that it is whole.
  Guide(std::shared_ptr<const constrain::Restriction> restriction,
        std::span<const int32_t> stop_ids)
      : rules_(std::in_place_type<constrain::Restrained>, std::move(restriction)),
        stop_ids_(stop_ids) {}

  // The tokens of which one may come next, when so many may come with it; without any the answer
  // is over. Valid until the next call.
  std::span<const uint64_t> allowed(int64_t tokens_left, MayStop may_stop);
  void take(int32_t token) {
    std::visit([&](auto& rules) { rules.take(token); }, rules_);
  }

  // Whether what was written is all that a constraint asks for; whether nothing can follow.
  bool may_end() const { return matcher() != nullptr && matcher()->may_end(); }
  bool must_end() const { return matcher() != nullptr && matcher()->must_end(); }
  // The length of the answer has kept tokens out that the constraint allows.
  bool was_narrowed() const { return matcher() != nullptr && matcher()->was_narrowed(); }

 private:
  const constrain::Matcher* matcher() const { return std::get_if<constrain::Matcher>(&rules_); }

  std::variant<constrain::Matcher, constrain::Restrained> rules_;
  std::span<const int32_t> stop_ids_;
  constrain::TokenBits bits_;
};

}  // namespace dsmoe::infer

// Decimal numbers between two bounds as rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "constrain/nfa.h"

namespace dsmoe::constrain {

// A bound as it is written: the digits before and behind the point, without zeros at the ends.
struct Decimal {
  std::string whole;     // "0" for nothing
  std::string fraction;  // may be empty
  bool is_negative = false;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
  // The shortest decimal that is read as the same number.
  static Decimal of(const OrderedJson& number);
};

// Multiples of units / 10^digits.
struct Multiple {
  uint32_t units = 1;
  int digits = 0;
};

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_is_excluded = false, high_is_excluded = false;
  std::optional<Multiple> multiple_of;

  bool any() const { return low || high || multiple_of; }
};

// Numbers without an exponent, with up to so many digits behind the point. Before it they have as
// many as the bounds; without a bound at most 16, multiples 15.
void add_number_range(Nfa& nfa, int32_t from, const NumberBounds& bounds, int fraction_digits,
                      int32_t to);

}  // namespace dsmoe::constrain

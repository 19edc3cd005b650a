// Digit by digit beside the digits of both bounds, as long as they are equal so far.
#include "constrain/number_range.h"

#include <array>
#include <charconv>
#include <map>
#include <tuple>

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMostDigits = 16;
constexpr std::size_t kMostDigitsOfMultiples = 15;  // that every reader of doubles keeps

// Magnitudes between two bounds.
class RangeWriter {
 public:
  struct Limits {
    Decimal low;                  // at least this
    std::optional<Decimal> high;  // at most this
    bool low_is_excluded = false, high_is_excluded = false;
    std::optional<Multiple> multiple_of = {};
  };
  RangeWriter(Nfa& nfa, Limits limits, int fraction_digits, int32_t to)
      : nfa_(nfa), limits_(std::move(limits)), fraction_digits_(fraction_digits), to_(to) {}

  void write(int32_t from) {
    const std::size_t shortest = limits_.low.whole.size();
    if (limits_.high) {
      for (std::size_t length = shortest; length <= limits_.high->whole.size(); ++length) {
        write_lengths(from, {length, length},
                      {.low = length == shortest, .high = length == limits_.high->whole.size()});
      }
      return;
    }
    write_lengths(from, {shortest, shortest}, {.low = true});
    const std::size_t most = limits_.multiple_of ? kMostDigitsOfMultiples : kMostDigits;
    if (shortest < most) write_lengths(from, {shortest + 1, most}, {});
  }

 private:
  // Equal to the bound so far.
  struct Tight {
    bool low = false, high = false;
  };
  struct Place {
    std::size_t digit = 0;
    Tight tight;
    uint32_t remainder = 0;  // of all digits so far, read as one number; 0 where nothing divides
    auto key() const { return std::tuple(digit, tight.low, tight.high, remainder); }
  };
  using Nodes = std::map<std::tuple<std::size_t, bool, bool, uint32_t>, int32_t>;

  static int digit_of(const std::string& digits, std::size_t at) {
    return at < digits.size() ? digits[at] - '0' : 0;
  }
  static bool has_more(const std::string& digits, std::size_t at) { return digits.size() > at; }

  uint32_t remainder_with(Place place, int digit) const {
    if (!limits_.multiple_of) return 0;
    return (place.remainder * 10 + static_cast<uint32_t>(digit)) % limits_.multiple_of->units;
  }

  // Calls f(digit, the place behind it).
  template <class F>
  void each_step(Place place, const std::string& low, const std::string& high, int least, F&& f) {
    const int first = place.tight.low ? digit_of(low, place.digit) : 0;
    const int last = place.tight.high ? digit_of(high, place.digit) : 9;
    for (int digit = std::max(first, least); digit <= last; ++digit) {
      f(digit, Place{.digit = place.digit + 1,
                     .tight = {.low = place.tight.low && digit == first,
                               .high = place.tight.high && digit == last},
                     .remainder = remainder_with(place, digit)});
    }
  }

  // How many digits there may be before the point.
  struct Lengths {
    std::size_t least = 0, most = 0;
  };

  void write_lengths(int32_t from, Lengths lengths, Tight tight) {
    whole_nodes_.clear();
    write_whole(from, {.digit = 0, .tight = tight}, lengths);
  }

  void write_whole(int32_t from, Place place, Lengths lengths) {
    if (place.digit >= lengths.least) {
      write_end(from, {.digit = 0, .tight = place.tight, .remainder = place.remainder});
    }
    if (place.digit == lengths.most) return;
    const std::string none;
    // No zero before others.
    const int least = place.digit == 0 && lengths.most > 1 ? 1 : 0;
    each_step(place, limits_.low.whole, limits_.high ? limits_.high->whole : none, least,
              [&](int digit, const Place& next) {
                const auto [found, is_new] = whole_nodes_.try_emplace(next.key(), 0);
                if (is_new) {
                  found->second = nfa_.add_node();
                  write_whole(found->second, next, lengths);
                }
                add_digit(from, digit, whole_nodes_.at(next.key()));
              });
  }

  // After the whole part, or after digits behind the point.
  void write_end(int32_t from, Place place) {
    if (may_end(place)) nfa_.add_empty(from, to_);
    if (place.digit == static_cast<std::size_t>(fraction_digits_)) return;
    int32_t point = from;
    if (place.digit == 0) {
      point = nfa_.add_node();
      nfa_.add_literal(from, ".", point);
    }
    const std::string none;
    each_step(place, limits_.low.fraction, limits_.high ? limits_.high->fraction : none, 0,
              [&](int digit, const Place& next) {
                const auto [found, is_new] = fraction_nodes_.try_emplace(next.key(), 0);
                if (is_new) {
                  found->second = nfa_.add_node();
                  write_end(found->second, next);
                }
                add_digit(point, digit, fraction_nodes_.at(next.key()));
              });
  }

  // With nothing but zeros behind.
  bool may_end(Place place) const {
    const bool below =
        place.tight.low && (has_more(limits_.low.fraction, place.digit) || limits_.low_is_excluded);
    const bool above = place.tight.high && !has_more(limits_.high->fraction, place.digit) &&
                       limits_.high_is_excluded;
    return !below && !above && is_multiple(place);
  }

  // The digits that are not written are zeros.
  bool is_multiple(Place place) const {
    if (!limits_.multiple_of) return true;
    uint64_t rest = place.remainder;
    for (auto d = static_cast<int>(place.digit); d < limits_.multiple_of->digits; ++d) {
      rest = rest * 10 % limits_.multiple_of->units;
    }
    return rest == 0;
  }

  void add_digit(int32_t from, int digit, int32_t to) {
    const auto byte = static_cast<uint8_t>('0' + digit);
    nfa_.add_bytes(from, byte, byte, to);
  }

  Nfa& nfa_;
  Limits limits_;
  int fraction_digits_;
  int32_t to_;
  Nodes whole_nodes_, fraction_nodes_;
};

const Decimal kZero{.whole = "0"};

}  // namespace

Decimal Decimal::of(const OrderedJson& number) {
  std::string text;
  if (number.is_number_float()) {
    std::array<char, 400> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                   number.get<double>(), std::chars_format::fixed);
    text.assign(buffer.data(), end.ptr);
  } else {
    text = number.dump();
  }
  Decimal decimal;
  decimal.is_negative = text.starts_with('-');
  if (decimal.is_negative) text.erase(0, 1);
  const std::size_t point = std::min(text.find('.'), text.size());
  decimal.whole = text.substr(0, point);
  if (point < text.size()) decimal.fraction = text.substr(point + 1);
  while (decimal.fraction.ends_with('0')) decimal.fraction.pop_back();
  if (decimal.is_zero()) decimal.is_negative = false;
  return decimal;
}

void add_number_range(Nfa& nfa, int32_t from, const NumberBounds& bounds, int fraction_digits,
                      int32_t to) {
  const auto& [low, high, low_is_excluded, high_is_excluded, multiple_of] = bounds;
  const bool is_below_zero = high && (high->is_negative || (high->is_zero() && high_is_excluded));
  const bool is_above_zero = low && (!low->is_negative);
  if (!is_below_zero) {
    RangeWriter::Limits limits{.low = kZero,
                               .high = high,
                               .high_is_excluded = high_is_excluded,
                               .multiple_of = multiple_of};
    if (is_above_zero) {
      limits.low = *low;
      limits.low_is_excluded = low_is_excluded;
    }
    RangeWriter(nfa, std::move(limits), fraction_digits, to).write(from);
  }
  if (!is_above_zero) {
    // No minus before nothing but zeros.
    RangeWriter::Limits limits{.low = kZero,
                               .high = low,
                               .low_is_excluded = true,
                               .high_is_excluded = low_is_excluded,
                               .multiple_of = multiple_of};
    if (is_below_zero && !high->is_zero()) {
      limits.low = *high;
      limits.low_is_excluded = high_is_excluded;
    }
    const int32_t minus = nfa.add_node();
    nfa.add_literal(from, "-", minus);
    RangeWriter(nfa, std::move(limits), fraction_digits, to).write(minus);
  }
}

}  // namespace dsmoe::constrain

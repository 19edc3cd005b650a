// Bounds as decimals, within what doubles keep.
#include "constrain/schema_numbers.h"

#include <optional>

namespace dsmoe::constrain {
namespace {

constexpr uint32_t kMostUnits = 1000;  // remainders are states

const OrderedJson* number_at(const At& at, const char* key) {
  const auto found = at.json.find(key);
  if (found == at.json.end()) return nullptr;
  if (!found->is_number()) refuse(below(at.path, key), "expected a number");
  return &*found;
}

void read_bound(const At& at, const char* key, bool is_integer, std::optional<Decimal>& bound) {
  const OrderedJson* number = number_at(at, key);
  if (number == nullptr) return;
  const std::string path = below(at.path, key);
  if (bound) refuse(path, "not supported together with its other form");
  bound = Decimal::of(*number);
  // Beyond, numbers that are read as doubles need not be on the side on which they are written.
  if (bound->whole.size() > 15 || bound->fraction.size() > kFractionDigits) {
    refuse(path, fmt::format("a bound has at most 15 digits before the point and {} behind it",
                             kFractionDigits));
  }
  if (!is_integer && bound->whole.size() > 9) {
    refuse(path, "a bound of a number has at most 9 digits before the point");
  }
}

std::optional<Multiple> read_multiple(const At& at) {
  const OrderedJson* number = number_at(at, "multipleOf");
  if (number == nullptr) return std::nullopt;
  const std::string path = below(at.path, "multipleOf");
  const Decimal decimal = Decimal::of(*number);
  if (decimal.is_negative || decimal.is_zero()) refuse(path, "expected a number above 0");
  const std::string digits = decimal.whole + decimal.fraction;
  const std::size_t first = digits.find_first_not_of('0');
  const bool is_short = digits.size() - first <= 4 && decimal.fraction.size() <= kFractionDigits;
  const uint32_t units = is_short ? static_cast<uint32_t>(std::stoi(digits.substr(first))) : 0;
  if (units == 0 || units > kMostUnits) {
    refuse(path, fmt::format("expected 1 to {}, without regard to the point, and at most {} "
                             "digits behind it",
                             kMostUnits, kFractionDigits));
  }
  return Multiple{.units = units, .digits = static_cast<int>(decimal.fraction.size())};
}

}  // namespace

NumberBounds number_bounds_of(const At& at, bool is_integer) {
  NumberBounds bounds;
  read_bound(at, "minimum", is_integer, bounds.low);
  read_bound(at, "exclusiveMinimum", is_integer, bounds.low);
  read_bound(at, "maximum", is_integer, bounds.high);
  read_bound(at, "exclusiveMaximum", is_integer, bounds.high);
  bounds.low_is_excluded = at.json.contains("exclusiveMinimum");
  bounds.high_is_excluded = at.json.contains("exclusiveMaximum");
  bounds.multiple_of = read_multiple(at);
  return bounds;
}

}  // namespace dsmoe::constrain

// Parts of JSON text as rules: white space, strings, numbers, values of any kind.
#pragma once

#include <cstdint>
#include <span>

#include "constrain/nfa.h"

namespace dsmoe::constrain {

// Each rule is made when it is first called; all callers of one Nfa share it.
class JsonText {
 public:
  explicit JsonText(Nfa& nfa) : nfa_(nfa) {}

  // Nothing, a space, or a new line and up to 32 spaces or 8 tabs: white space has to end.
  void add_space(int32_t from, int32_t to);
  // A string of so many characters, quotes included.
  void add_string(int32_t from, Bounds characters, int32_t to);
  // At most 16 digits; a number besides 15 behind the point and an exponent of two digits.
  void add_integer(int32_t from, int32_t to);
  void add_number(int32_t from, int32_t to);
  void add_value(int32_t from, int32_t to);   // of any kind
  void add_object(int32_t from, int32_t to);  // with any members
  void add_array(int32_t from, int32_t to);

 private:
  void call(const char* name, int32_t from, int32_t to,
            void (JsonText::*write)(int32_t from, int32_t to));
  void write_space(int32_t from, int32_t to);
  void write_integer(int32_t from, int32_t to);
  void write_number(int32_t from, int32_t to);
  void write_value(int32_t from, int32_t to);
  void write_object(int32_t from, int32_t to);
  void write_array(int32_t from, int32_t to);
  void write_character(int32_t from, int32_t to);

  Nfa& nfa_;
};

// One character of the ranges as it stands in a JSON string: what may stand for itself does, the
// others have the shortest escape.
void add_json_characters(Nfa& nfa, int32_t from, std::span<const CodePoints> ranges, int32_t to);
// Up to so many digits.
void add_digits(Nfa& nfa, int32_t from, int most, int32_t to);

}  // namespace dsmoe::constrain

// For tests: a small vocabulary, what a constraint lets through, how it is refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "constrain/constraint.h"

namespace dsmoe::constrain {

// Token b is byte b; then some longer ones, as text has them.
inline std::shared_ptr<const Vocabulary> test_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    for (const char* text :
         {"",     "{\"",       "\":",  "\": ", "\",",  "\", \"", "\"}",   "\"]",
          "},",   "}}",        "]}",   "],",   ", ",   "true",   "false", "null",
          "name", "\"name\":", "the ", " a",   "ab",   "abc",    "12",    "123",
          "1,",   "0.5",       "\n",   "\n  ", "  ",   "é",      "日本",  "\xe6\x97",
          "\xa5", "\\u",       "\\n",  "\\\"", "[[",   "]]",     "[1",    "-1",
          "e+",   "a\"",       "1}",   "}\n",  "\"\"", "[]",     "{}",    "\xf0\x9f\x98\x80"}) {
      bytes.emplace_back(text);
    }
    return std::make_shared<const Vocabulary>(std::move(bytes));
  }();
  return vocabulary;
}

inline std::shared_ptr<const Constraint> constraint_of(const Shape& shape) {
  return std::make_shared<const Constraint>(shape, test_vocabulary());
}
inline Shape schema_of(std::string_view text) {
  return Shape::schema(parse_ordered_json(text, "schema"), "schema");
}

// How many bytes of the text may be written one after the other; all and one more: and it may end.
inline std::size_t accepted_bytes(const std::shared_ptr<const Constraint>& constraint,
                                  std::string_view text) {
  Matcher matcher(constraint);
  TokenBits bits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(text[i]));
    matcher.allowed(1 << 20, bits);
    if (!has_token(bits, token)) return i;
    matcher.take(token);
  }
  return text.size() + (matcher.may_end() ? 1 : 0);
}
inline bool accepts(const std::shared_ptr<const Constraint>& constraint, std::string_view text) {
  return accepted_bytes(constraint, text) == text.size() + 1;
}

inline std::string refusal_of(const Shape& shape) {
  try {
    constraint_of(shape);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::input ? e.what() : std::string("not input: ") + e.what();
  }
  return "accepted";
}

}  // namespace dsmoe::constrain

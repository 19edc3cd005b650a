// Reads JSON values one by one as RFC 8259 defines them, strings checked for UTF-8 on the way.
#include "store/json_cursor.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::store {
namespace {

constexpr int kMaxDepth = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void JsonCursor::refuse(std::string_view expected) const {
  std::string found = "the end";
  if (pos_ < text_.size()) found = in_quotes(text_.substr(pos_, 1));
  fail(ErrorKind::input, "{}: not valid JSON at byte {}: expected {}, found {}", what_, pos_,
       expected, found);
}

void JsonCursor::skip_space() {
  while (pos_ < text_.size() &&
         std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos)
    ++pos_;
}

// NUL stands for the end: it is not valid outside strings, and strings do not use peek().
char JsonCursor::peek() {
  skip_space();
  return pos_ < text_.size() ? text_[pos_] : '\0';
}

bool JsonCursor::take(char c) {
  if (peek() != c || pos_ >= text_.size()) return false;
  ++pos_;
  return true;
}

void JsonCursor::expect(char c, std::string_view expected) {
  if (!take(c)) refuse(expected);
}

void JsonCursor::open_object() {
  expect('{', "an object");
  first_ = true;
}

std::optional<std::string> JsonCursor::next_key() {
  if (take('}')) {
    first_ = false;
    return std::nullopt;
  }
  if (!first_) expect(',', "',' or '}'");
  first_ = false;
  if (peek() != '"') refuse("a key in quotes");
  std::string key = read_string();
  expect(':', "':' after the key");
  return key;
}

void JsonCursor::open_array() {
  expect('[', "an array");
  first_ = true;
}

bool JsonCursor::next_element() {
  if (take(']')) {
    first_ = false;
    return false;
  }
  if (!first_) expect(',', "',' or ']'");
  first_ = false;
  return true;
}

std::string JsonCursor::read_string() {
  expect('"', "a string");
  std::string out;
  // One allocation of the final size: doubling would take three times a hostile string's length.
  std::size_t end = pos_;
  while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  out.reserve(std::min(end, text_.size()) - pos_);
  for (;;) {
    if (pos_ >= text_.size()) refuse("the closing quote of a string");
    const char c = text_[pos_];
    if (c == '"') {
      ++pos_;
      return out;
    }
    if (c == '\\') {
      append_escape(out);
    } else {
      append_unescaped(out);
    }
  }
}

void JsonCursor::append_unescaped(std::string& out) {
  const char* const begin = text_.data() + pos_;
  const char* const end = text_.data() + text_.size();
  const char* run = begin;  // plain ASCII goes in one piece
  const auto is_plain = [](unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
  };
  while (run != end && is_plain(static_cast<unsigned char>(*run))) ++run;
  if (run != begin) {
    out.append(begin, run);
    pos_ += static_cast<std::size_t>(run - begin);
    return;
  }
  if (static_cast<unsigned char>(*begin) < 0x20) refuse("control characters to be escaped");
  const int length = utf8_sequence_length(text_.substr(pos_));
  if (length == 0) refuse("valid UTF-8");
  out += text_.substr(pos_, length);
  pos_ += length;
}

uint32_t JsonCursor::read_hex4() {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++pos_) {
    const char c = pos_ < text_.size() ? text_[pos_] : '\0';
    const int digit = is_digit(c)              ? c - '0'
                      : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                      : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                               : -1;
    if (digit < 0) refuse("four hexadecimal digits after \\u");
    code = code * 16 + static_cast<uint32_t>(digit);
  }
  return code;
}

void JsonCursor::append_escape(std::string& out) {
  ++pos_;  // the backslash
  const char c = pos_ < text_.size() ? text_[pos_] : '\0';
  static constexpr std::string_view kNames = "\"\\/bfnrt";
  static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  const std::size_t which = c == '\0' ? std::string_view::npos : kNames.find(c);
  if (which != std::string_view::npos) {
    ++pos_;
    out += kValues[which];
    return;
  }
  if (c != 'u') refuse("an escape that JSON knows");
  ++pos_;
  uint32_t code = read_hex4();
  if (code >= 0xdc00 && code <= 0xdfff) refuse("a high surrogate before the low one");
  if (code >= 0xd800 && code <= 0xdbff) {
    if (text_.substr(pos_, 2) != "\\u") refuse("a low surrogate after the high one");
    pos_ += 2;
    const uint32_t low = read_hex4();
    if (low < 0xdc00 || low > 0xdfff) refuse("a low surrogate after the high one");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(out, code);
}

uint64_t JsonCursor::read_unsigned() {
  if (!is_digit(peek())) refuse("an unsigned integer");
  const std::size_t start = pos_;
  uint64_t value = 0;
  for (; pos_ < text_.size() && is_digit(text_[pos_]); ++pos_) {
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(text_[pos_] - '0'), &value)) {
      refuse("an integer below 2^64");
    }
  }
  if (text_[start] == '0' && pos_ - start > 1) refuse("a number without leading zeros");
  if (pos_ < text_.size() && std::string_view(".eE").find(text_[pos_]) != std::string_view::npos) {
    refuse("an unsigned integer");
  }
  return value;
}

void JsonCursor::skip_word(std::string_view word) {
  if (text_.substr(pos_, word.size()) != word) refuse("a JSON value");
  pos_ += word.size();
}

void JsonCursor::skip_number() {
  const auto digits = [&] {
    if (pos_ >= text_.size() || !is_digit(text_[pos_])) refuse("a digit");
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
  };
  const auto at = [&](std::string_view set) {
    return pos_ < text_.size() && set.find(text_[pos_]) != std::string_view::npos;
  };
  if (at("-")) ++pos_;
  const bool leading_zero = at("0");
  const std::size_t start = pos_;
  digits();
  if (leading_zero && pos_ - start > 1) refuse("a number without leading zeros");
  if (at(".")) {
    ++pos_;
    digits();
  }
  if (at("eE")) {
    ++pos_;
    if (at("+-")) ++pos_;
    digits();
  }
}

void JsonCursor::skip_value() { skip_value(0); }

void JsonCursor::skip_value(int depth) {
  if (depth >= kMaxDepth)
    fail(ErrorKind::input, "{}: JSON nested deeper than {} levels", what_, kMaxDepth);
  switch (peek()) {
    case '{':
      open_object();
      while (next_key()) skip_value(depth + 1);
      return;
    case '[':
      open_array();
      while (next_element()) skip_value(depth + 1);
      return;
    case '"':
      read_string();
      return;
    case 't':
      skip_word("true");
      return;
    case 'f':
      skip_word("false");
      return;
    case 'n':
      skip_word("null");
      return;
    default:
      skip_number();
  }
}

void JsonCursor::finish() {
  skip_space();
  if (pos_ < text_.size()) refuse("nothing after the JSON value");
}

}  // namespace dsmoe::store

// RFC 8259 between two nodes.
#include "constrain/json_text.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

constexpr int kMaxIntegerDigits = 16;
constexpr int kMaxFractionDigits = 15;

void add_hex(Nfa& nfa, int32_t from, int low, int high, int32_t to) {
  const auto add = [&](int first, int base, char zero) {
    const int begin = std::max(low, first), end = std::min(high, first + base - 1);
    if (begin > end) return;
    nfa.add_bytes(from, static_cast<uint8_t>(zero + begin - first),
                  static_cast<uint8_t>(zero + end - first), to);
  };
  add(0, 10, '0');
  add(10, 6, 'a');
  add(10, 6, 'A');
}

void add_hex_digits(Nfa& nfa, int32_t from, int count, int32_t to) {
  for (; count > 0; --count) {
    const int32_t next = count == 1 ? to : nfa.add_node();
    add_hex(nfa, from, 0, 15, next);
    from = next;
  }
}

}  // namespace

void add_digits(Nfa& nfa, int32_t from, int most, int32_t to) {
  for (; most > 0; --most) {
    nfa.add_empty(from, to);
    const int32_t next = most == 1 ? to : nfa.add_node();
    nfa.add_bytes(from, '0', '9', next);
    from = next;
  }
}

void add_json_characters(Nfa& nfa, int32_t from, std::span<const CodePoints> ranges, int32_t to) {
  static constexpr CodePoints kPlain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
  std::vector<CodePoints> plain;
  std::vector<uint32_t> escaped;
  for (const CodePoints& range : ranges) {
    for (const CodePoints& part : kPlain) {
      const uint32_t low = std::max(range.low, part.low), high = std::min(range.high, part.high);
      if (low <= high) plain.push_back({low, high});
    }
    for (uint32_t c = range.low; c <= std::min(range.high, uint32_t{0x5c}); ++c) {
      if (c < 0x20 || c == '"' || c == '\\') escaped.push_back(c);
    }
  }
  nfa.add_characters(from, plain, to);
  if (escaped.empty()) return;
  const int32_t backslash = nfa.add_node();
  nfa.add_literal(from, "\\", backslash);
  static constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";  // what, and its letter
  for (const uint32_t c : escaped) {
    bool is_short = false;
    for (std::size_t i = 0; i < kShort.size(); i += 2) {
      if (static_cast<uint32_t>(kShort[i]) != c) continue;
      nfa.add_literal(backslash, kShort.substr(i + 1, 1), to);
      is_short = true;
    }
    if (!is_short) nfa.add_literal(backslash, fmt::format("u{:04x}", c), to);
  }
}

void JsonText::call(const char* name, int32_t from, int32_t to,
                    void (JsonText::*write)(int32_t from, int32_t to)) {
  int32_t& rule = nfa_.shared_rule(name);
  if (rule < 0) {
    rule = nfa_.add_rule();
    const Nfa::Rule made = nfa_.rules()[static_cast<std::size_t>(rule)];
    (this->*write)(made.start, made.end);
  }
  nfa_.add_call(from, {.rule = rule}, to);
}

void JsonText::add_space(int32_t from, int32_t to) {
  call("JSON space", from, to, &JsonText::write_space);
}
void JsonText::add_integer(int32_t from, int32_t to) {
  call("JSON integer", from, to, &JsonText::write_integer);
}
void JsonText::add_number(int32_t from, int32_t to) {
  call("JSON number", from, to, &JsonText::write_number);
}
void JsonText::add_value(int32_t from, int32_t to) {
  call("JSON value", from, to, &JsonText::write_value);
}
void JsonText::add_object(int32_t from, int32_t to) {
  call("JSON object", from, to, &JsonText::write_object);
}
void JsonText::add_array(int32_t from, int32_t to) {
  call("JSON array", from, to, &JsonText::write_array);
}

void JsonText::write_space(int32_t from, int32_t to) {
  nfa_.add_empty(from, to);
  nfa_.add_bytes(from, ' ', ' ', to);
  for (const auto& [byte, most] : {std::pair(' ', 32), std::pair('\t', 8)}) {
    int32_t at = nfa_.add_node();
    nfa_.add_bytes(from, '\n', '\n', at);
    for (int i = 0; i < most; ++i) {
      nfa_.add_empty(at, to);
      const int32_t next = nfa_.add_node();
      nfa_.add_bytes(at, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), next);
      at = next;
    }
    nfa_.add_empty(at, to);
  }
}

void JsonText::add_string(int32_t from, Bounds characters, int32_t to) {
  int32_t& rule = nfa_.shared_rule("JSON characters");
  if (rule < 0) {
    rule = nfa_.add_counted_rule();
    const int32_t start = nfa_.rules()[static_cast<std::size_t>(rule)].start;
    write_character(start, start);
  }
  const int32_t open = nfa_.add_node(), close = nfa_.add_node();
  nfa_.add_literal(from, "\"", open);
  nfa_.add_call(open, {.rule = rule, .bounds = characters}, close);
  nfa_.add_literal(close, "\"", to);
}

// One code point: two escapes where it needs a pair of surrogates.
void JsonText::write_character(int32_t from, int32_t to) {
  static constexpr CodePoints kPlain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
  nfa_.add_characters(from, kPlain, to);
  const int32_t backslash = nfa_.add_node(), u = nfa_.add_node();
  nfa_.add_literal(from, "\\", backslash);
  for (const char letter : std::string_view("\"\\/bfnrt")) {
    nfa_.add_literal(backslash, std::string_view(&letter, 1), to);
  }
  nfa_.add_literal(backslash, "u", u);
  const int32_t other = nfa_.add_node();
  add_hex(nfa_, u, 0, 12, other);
  add_hex(nfa_, u, 14, 15, other);
  add_hex_digits(nfa_, other, 3, to);
  const int32_t d = nfa_.add_node(), plain = nfa_.add_node(), high = nfa_.add_node();
  add_hex(nfa_, u, 13, 13, d);
  add_hex(nfa_, d, 0, 7, plain);
  add_hex_digits(nfa_, plain, 2, to);
  add_hex(nfa_, d, 8, 11, high);
  const int32_t pair = nfa_.add_node(), second = nfa_.add_node(), low = nfa_.add_node();
  add_hex_digits(nfa_, high, 2, pair);
  nfa_.add_literal(pair, "\\u", second);
  const int32_t second_d = nfa_.add_node();
  add_hex(nfa_, second, 13, 13, second_d);
  add_hex(nfa_, second_d, 12, 15, low);
  add_hex_digits(nfa_, low, 2, to);
}

void JsonText::write_integer(int32_t from, int32_t to) {
  const int32_t unsigned_ = nfa_.add_node(), more = nfa_.add_node();
  nfa_.add_bytes(from, '0', '0', to);
  nfa_.add_empty(from, unsigned_);
  nfa_.add_bytes(from, '-', '-', unsigned_);
  nfa_.add_bytes(unsigned_, '1', '9', more);
  add_digits(nfa_, more, kMaxIntegerDigits - 1, to);
}

void JsonText::write_number(int32_t from, int32_t to) {
  const int32_t start = nfa_.add_node(), whole = nfa_.add_node(), point = nfa_.add_node();
  nfa_.add_empty(from, start);
  nfa_.add_bytes(from, '-', '-', start);
  nfa_.add_bytes(start, '0', '0', whole);
  const int32_t more = nfa_.add_node();
  nfa_.add_bytes(start, '1', '9', more);
  add_digits(nfa_, more, kMaxIntegerDigits - 1, whole);
  nfa_.add_empty(whole, to);
  nfa_.add_literal(whole, ".", point);
  const int32_t fraction = nfa_.add_node(), e = nfa_.add_node(), sign = nfa_.add_node();
  const int32_t behind = nfa_.add_node();
  nfa_.add_bytes(point, '0', '9', fraction);
  add_digits(nfa_, fraction, kMaxFractionDigits - 1, behind);
  nfa_.add_empty(behind, to);
  for (const int32_t at : {whole, behind}) {
    nfa_.add_literal(at, "e", e);
    nfa_.add_literal(at, "E", e);
  }
  nfa_.add_empty(e, sign);
  nfa_.add_literal(e, "+", sign);
  nfa_.add_literal(e, "-", sign);
  const int32_t digit = nfa_.add_node();
  nfa_.add_bytes(sign, '0', '9', digit);
  add_digits(nfa_, digit, 1, to);
}

void JsonText::write_value(int32_t from, int32_t to) {
  for (const char* word : {"null", "true", "false"}) nfa_.add_literal(from, word, to);
  add_string(from, {}, to);
  add_number(from, to);
  add_array(from, to);
  add_object(from, to);
}

void JsonText::write_array(int32_t from, int32_t to) {
  const int32_t open = nfa_.add_node(), item = nfa_.add_node(), behind = nfa_.add_node();
  const int32_t close = nfa_.add_node(), comma = nfa_.add_node();
  nfa_.add_literal(from, "[", open);
  nfa_.add_literal(open, "]", to);
  add_space(open, item);
  add_value(item, behind);
  nfa_.add_literal(behind, ",", comma);
  add_space(comma, item);
  add_space(behind, close);
  nfa_.add_literal(close, "]", to);
}

void JsonText::write_object(int32_t from, int32_t to) {
  const int32_t open = nfa_.add_node(), key = nfa_.add_node(), colon = nfa_.add_node();
  const int32_t space = nfa_.add_node(), value = nfa_.add_node(), behind = nfa_.add_node();
  const int32_t close = nfa_.add_node(), comma = nfa_.add_node();
  nfa_.add_literal(from, "{", open);
  nfa_.add_literal(open, "}", to);
  add_space(open, key);
  add_string(key, {}, colon);
  nfa_.add_literal(colon, ":", space);
  add_space(space, value);
  add_value(value, behind);
  nfa_.add_literal(behind, ",", comma);
  add_space(comma, key);
  add_space(behind, close);
  nfa_.add_literal(close, "}", to);
}

}  // namespace dsmoe::constrain

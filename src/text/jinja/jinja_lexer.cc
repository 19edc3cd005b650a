// A hand-written scanner with jinja2's two modes: text outside of tags, Python-like tokens inside.
#include "text/jinja/jinja_lexer.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <optional>

#include "base/utf8.h"

namespace dsmoe::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

// All newlines become \n and one newline at the very end is dropped, as jinja2 does before anything
// else.
std::string normalise_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view what)
      : what_(what), source_(normalise_newlines(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) text();
    emit(TokenKind::end, pos_);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  bool at(std::string_view expected) const { return rest().substr(0, expected.size()) == expected; }

  // Only ever asked for growing offsets, so the whole template is walked once.
  Position position(std::size_t offset) {
    for (; mark_ < offset; ++mark_) {
      const char c = source_[mark_];
      if (c == '\n') {
        ++mark_at_.line;
        mark_at_.column = 1;
      } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
        ++mark_at_.column;
      }
    }
    return mark_at_;
  }

  [[noreturn]] void fail(std::size_t offset, const std::string& message) {
    mark_ = 0;  // the offset may lie before the last token
    mark_at_ = {};
    fail_at(what_, position(offset), message);
  }

  Token& emit(TokenKind kind, std::size_t offset, std::string_view value = {}) {
    tokens_.push_back({.kind = kind, .text = std::string(value), .at = position(offset)});
    return tokens_.back();
  }

  void skip_space() {
    while (pos_ < source_.size()) {
      std::size_t next = pos_;
      if (!is_space(next_code_point(source_, next))) return;
      pos_ = next;
    }
  }

  // '-' and '+' right after an opening tag.
  char sign() {
    if (pos_ >= source_.size() || (source_[pos_] != '-' && source_[pos_] != '+')) return 0;
    return source_[pos_++];
  }

  // Emits source_[begin, end) as data, trimmed on the right by the tag that follows it.
  void data_before_tag(std::size_t begin, std::size_t end, char tag_sign, bool is_variable) {
    std::string_view data = std::string_view(source_).substr(begin, end - begin);
    if (tag_sign == '-') {
      data = strip(data, Side::right);
    } else if (tag_sign != '+' && !is_variable) {
      const std::size_t line = data.rfind('\n') + 1;  // npos + 1 == 0
      const bool line_starting = begin == 0 || source_[begin - 1] == '\n';
      if ((line > 0 || line_starting) && strip(data.substr(line), Side::left).empty()) {
        data = data.substr(0, line);
      }
    }
    if (!data.empty()) emit(TokenKind::data, begin, data);
  }

  // What may follow a closing tag: '-' eats white space, nothing eats one newline, '+' keeps all.
  void after_block_end(char tag_sign) {
    if (tag_sign == '-') {
      skip_space();
    } else if (tag_sign == 0 && at("\n")) {
      ++pos_;
    }
  }

  void text() {
    const std::size_t begin = pos_;
    std::size_t tag = source_.find('{', begin);
    while (tag != std::string::npos && tag + 1 < source_.size() &&
           std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos) {
      tag = source_.find('{', tag + 1);
    }
    if (tag == std::string::npos || tag + 1 >= source_.size()) {
      emit(TokenKind::data, begin, rest());
      pos_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    pos_ = tag + 2;
    data_before_tag(begin, tag, sign(), kind == '{');
    if (kind == '#') {
      comment(tag);
    } else if (kind == '{') {
      tag_tokens(tag, TokenKind::variable_begin);
    } else if (!raw_block(tag)) {
      tag_tokens(tag, TokenKind::block_begin);
    }
  }

  void comment(std::size_t tag) {
    const std::size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) fail(tag, "comment without its end '#}'");
    const char before = end > pos_ ? source_[end - 1] : '\0';
    pos_ = end + 2;
    after_block_end(before == '-' || before == '+' ? before : '\0');
  }

  // {% raw %} ... {% endraw %}; false and nothing consumed when the tag is something else.
  bool raw_block(std::size_t tag) {
    const std::size_t begin = pos_;
    skip_space();
    if (!at("raw")) return pos_ = begin, false;
    pos_ += 3;
    skip_space();
    const bool trim = at("-%}");
    if (!trim && !at("%}")) return pos_ = begin, false;
    pos_ += trim ? 3 : 2;
    if (trim) skip_space();
    const std::size_t body = pos_;
    for (std::size_t open = source_.find("{%", pos_); open != std::string::npos;
         open = source_.find("{%", open + 2)) {
      pos_ = open + 2;
      const char open_sign = sign();
      skip_space();
      if (!at("endraw")) continue;
      pos_ += 6;
      skip_space();
      const char close_sign = at("-%}") ? '-' : at("+%}") ? '+' : '\0';
      if (close_sign != 0) ++pos_;
      if (!at("%}")) continue;
      data_before_tag(body, open, open_sign, false);
      pos_ += 2;
      after_block_end(close_sign);
      return true;
    }
    fail(tag, "raw block without its end '{% endraw %}'");
  }

  void tag_tokens(std::size_t tag, TokenKind kind) {
    emit(kind, tag);
    const bool variable = kind == TokenKind::variable_begin;
    std::string closers;  // brackets still open: '}}' inside a dict is not the end of the tag
    while (true) {
      skip_space();
      if (pos_ >= source_.size()) {
        fail(tag, fmt::format("tag without its end '{}'", variable ? "}}" : "%}"));
      }
      if (closers.empty() && tag_end(variable)) return;
      token(closers);
    }
  }

  bool tag_end(bool variable) {
    const std::size_t begin = pos_;
    const std::string_view close = variable ? "}}" : "%}";
    char close_sign = 0;
    if (at("-") || (!variable && at("+"))) close_sign = source_[pos_++];
    if (!at(close)) return pos_ = begin, false;
    emit(variable ? TokenKind::variable_end : TokenKind::block_end, begin);
    pos_ += 2;
    if (variable && close_sign == '-') skip_space();
    if (!variable) after_block_end(close_sign);
    return true;
  }

  void token(std::string& closers) {
    const char c = source_[pos_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string_literal();
    if (is_name_start(c)) {
      const std::size_t begin = pos_;
      while (pos_ < source_.size() && is_name_char(source_[pos_])) ++pos_;
      emit(TokenKind::name, begin, std::string_view(source_).substr(begin, pos_ - begin));
      return;
    }
    op(closers);
  }

  void op(std::string& closers) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const std::size_t begin = pos_;
    for (const std::string_view candidate : kOperators) {
      if (!at(candidate)) continue;
      if (const auto open = std::string_view("([{").find(candidate);
          open != std::string_view::npos) {
        closers += ")]}"[open];
      } else if (std::string_view(")]}").find(candidate) != std::string_view::npos) {
        if (closers.empty()) fail(begin, fmt::format("unexpected '{}'", candidate));
        if (closers.back() != candidate[0]) {
          fail(begin, fmt::format("unexpected '{}', expected '{}'", candidate, closers.back()));
        }
        closers.pop_back();
      }
      pos_ += candidate.size();
      emit(TokenKind::op, begin, candidate);
      return;
    }
    std::size_t next = pos_;
    next_code_point(source_, next);
    fail(begin, fmt::format("unexpected character {} inside a tag",
                            python_repr(std::string_view(source_).substr(begin, next - begin))));
  }

  // Digits with single underscores between them; appends the digits to `out`.
  bool digits(std::string& out) {
    if (pos_ >= source_.size() || !is_digit(source_[pos_])) return false;
    while (pos_ < source_.size()) {
      if (source_[pos_] == '_' && pos_ + 1 < source_.size() && is_digit(source_[pos_ + 1])) ++pos_;
      if (!is_digit(source_[pos_])) break;
      out += source_[pos_++];
    }
    return true;
  }

  void number() {
    const std::size_t begin = pos_;
    if (at("0x") || at("0X") || at("0b") || at("0B") || at("0o") || at("0O")) {
      fail(begin, "hexadecimal, octal and binary numbers are not supported");
    }
    std::string text;
    digits(text);
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 is two subscripts
    if (after_dot || !fraction_and_exponent(text)) return integer(begin, text);
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc{}) fail(begin, fmt::format("the number {} is out of range", text));
    emit(TokenKind::floating, begin, text).floating = value;
  }

  bool fraction_and_exponent(std::string& text) {
    const std::size_t integer_end = pos_;
    std::string tail = ".";
    bool found = false;
    if (at(".")) {
      ++pos_;
      found = digits(tail);
    }
    if (found) text += tail;
    if (!found) pos_ = integer_end;
    const std::size_t mantissa_end = pos_;
    if (at("e") || at("E")) {
      ++pos_;
      std::string exponent = "e";
      if (at("+") || at("-")) exponent += source_[pos_++];
      if (digits(exponent)) {
        text += exponent;
        return true;
      }
      pos_ = mantissa_end;
    }
    return found;
  }

  void integer(std::size_t begin, const std::string& text) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
      fail(begin, fmt::format("the integer {} starts with 0", text));
    }
    std::int64_t value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc{})
      fail(begin, fmt::format("the integer {} needs more than 64 bits", text));
    emit(TokenKind::integer, begin, text).integer = value;
  }

  void string_literal() {
    const std::size_t begin = pos_;
    const char quote = source_[pos_++];
    std::string value;
    while (true) {
      if (pos_ >= source_.size()) fail(begin, "string without its closing quote");
      const char c = source_[pos_++];
      if (c == quote) break;
      if (c == '\\') {
        if (pos_ >= source_.size()) fail(begin, "string without its closing quote");
        escape(value);
      } else {
        value += c;
      }
    }
    emit(TokenKind::string, begin, value);
  }

  // Python's escapes. An unknown one keeps its backslash.
  void escape(std::string& value) {
    const std::size_t begin = pos_ - 1;
    const char c = source_[pos_++];
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const auto known = kLetters.find(c); known != std::string_view::npos) {
      value += kValues[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_code_point(value, begin, hex(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 0;
           i < 2 && pos_ < source_.size() && source_[pos_] >= '0' && source_[pos_] <= '7'; ++i) {
        code = code * 8 + static_cast<char32_t>(source_[pos_++] - '0');
      }
      append_code_point(value, begin, code);
    } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      fail(begin, "this escape sequence in a string is not supported");
    } else if (c != '\n') {  // backslash, newline: a continued line
      value += '\\';
      value += c;
    }
  }

  char32_t hex(std::size_t begin, std::size_t length) {
    std::uint32_t code = 0;
    const std::string_view text = rest().substr(0, length);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() < length || result.ptr != text.data() + length) {
      fail(begin,
           fmt::format("an escape sequence in a string needs {} hexadecimal digits", length));
    }
    pos_ += length;
    return code;
  }

  void append_code_point(std::string& value, std::size_t begin, char32_t code) {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail(begin, fmt::format("U+{:X} is not a character", static_cast<std::uint32_t>(code)));
    }
    append_utf8(value, code);
  }

  std::string what_;
  std::string source_;
  std::size_t pos_ = 0;
  std::size_t mark_ = 0;  // how far position() has counted
  Position mark_at_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source, std::string_view what) {
  return Lexer(source, what).run();
}

}  // namespace dsmoe::text::jinja

// Code-point walks over UTF-8, and the tables behind Python's isspace and isprintable.
#include "text/jinja/jinja_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/utf8.h"

namespace dsmoe::text::jinja {
namespace {

struct Range {
  char32_t first, last;
};

// General categories Cc, Cf, Co, Cs, Zl, Zp and Zs without the ASCII space.
constexpr std::array kUnprintable = {
    Range{0x00, 0x1F},       Range{0x7F, 0xA0},       Range{0xAD, 0xAD},
    Range{0x600, 0x605},     Range{0x61C, 0x61C},     Range{0x6DD, 0x6DD},
    Range{0x70F, 0x70F},     Range{0x890, 0x891},     Range{0x8E2, 0x8E2},
    Range{0x1680, 0x1680},   Range{0x180E, 0x180E},   Range{0x2000, 0x200F},
    Range{0x2028, 0x202F},   Range{0x205F, 0x206F},   Range{0x3000, 0x3000},
    Range{0xD800, 0xF8FF},   Range{0xFEFF, 0xFEFF},   Range{0xFFF9, 0xFFFB},
    Range{0xFFFE, 0xFFFF},   Range{0x110BD, 0x110BD}, Range{0x110CD, 0x110CD},
    Range{0x13430, 0x1343F}, Range{0x1BCA0, 0x1BCA3}, Range{0x1D173, 0x1D17A},
    Range{0xE0001, 0xE0001}, Range{0xE0020, 0xE007F}, Range{0xF0000, 0x10FFFF},
};

// fmt would do, but hostile text is made of nothing but characters to escape.
void append_hex(std::string& out, char prefix, std::uint32_t value, int digits) {
  out += '\\';
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[(value >> shift) & 0xF];
  }
}

}  // namespace

std::size_t count_code_points(std::string_view text) {
  // All bytes but continuation bytes.
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c >= 0x20 && c < 0x7F) return true;
  return std::none_of(kUnprintable.begin(), kUnprintable.end(),
                      [c](Range r) { return c >= r.first && c <= r.last; });
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  std::u32string set;
  for (std::size_t i = 0; chars && i < chars->size();) set += next_code_point(*chars, i);
  std::sort(set.begin(), set.end());  // hostile sets stay O(n log m)
  const auto drop = [&](char32_t c) {
    return chars ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (side != Side::right && begin < end) {
    std::size_t next = begin;
    if (!drop(next_code_point(text, next))) break;
    begin = next;
  }
  while (side != Side::left && begin < end) {
    const std::size_t start = previous_char(text, end);
    std::size_t pos = start;
    if (!drop(next_code_point(text, pos))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split_white_space(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::left);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) == max_splits) {
      parts.push_back(strip(text, Side::right));
      break;
    }
    std::size_t end = 0;
    for (std::size_t next = 0; end < text.size(); end = next) {
      if (is_space(next_code_point(text, next))) break;
    }
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Side::left);
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits, Side from) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits) {
    const std::size_t hit = from == Side::right ? text.rfind(separator) : text.find(separator);
    if (hit == std::string_view::npos) break;
    if (from == Side::right) {
      parts.push_back(text.substr(hit + separator.size()));
      text = text.substr(0, hit);
    } else {
      parts.push_back(text.substr(0, hit));
      text.remove_prefix(hit + separator.size());
    }
  }
  parts.push_back(text);
  if (from == Side::right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t at = pos;
    const char32_t c = next_code_point(text, pos);
    if (!is_line_break(c)) continue;
    lines.push_back(text.substr(start, at - start));
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    start = pos;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace(std::string_view text, std::string_view old_text, std::string_view new_text,
                    std::int64_t max_replacements) {
  std::string out;
  std::size_t pos = 0;
  for (std::int64_t done = 0; max_replacements < 0 || done < max_replacements; ++done) {
    if (old_text.empty()) {
      out += new_text;
      if (pos == text.size()) return out;
      const std::size_t start = pos;
      next_code_point(text, pos);
      out += text.substr(start, pos - start);
      continue;
    }
    const std::size_t hit = text.find(old_text, pos);
    if (hit == std::string_view::npos) break;
    out += text.substr(pos, hit - pos);
    out += new_text;
    pos = hit + old_text.size();
  }
  out += text.substr(pos);
  return out;
}

std::string python_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      if (c < 0x100)
        append_hex(out, 'x', c, 2);
      else if (c < 0x10000)
        append_hex(out, 'u', c, 4);
      else
        append_hex(out, 'U', c, 8);
    }
  }
  return out += quote;
}

void append_json_string(std::string& out, std::string_view text, JsonEscape escape) {
  out += '"';
  for (std::size_t pos = 0; pos < text.size();) {
    auto c = static_cast<std::uint32_t>(next_code_point(text, pos));
    static constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    static constexpr std::string_view kLetter = "\"\\bfnrt";
    const std::size_t known = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out += '\\';
      out += kLetter[known];
    } else if (c < 0x20 || (c >= 0x7F && escape == JsonEscape::non_ascii)) {
      if (c >= 0x10000) {
        append_hex(out, 'u', 0xD800 + ((c - 0x10000) >> 10), 4);
        c = 0xDC00 + ((c - 0x10000) & 0x3FF);
      }
      append_hex(out, 'u', c, 4);
    } else {
      append_utf8(out, c);
    }
  }
  out += '"';
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::scientific);
  const std::string_view shortest(buffer.data(),
                                  static_cast<std::size_t>(result.ptr - buffer.data()));
  const std::size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace dsmoe::text::jinja

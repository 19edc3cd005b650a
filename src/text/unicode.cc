// The generated table and the lookups over it.
#include "text/unicode.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/utf8.h"

namespace dsmoe::text {
namespace {

struct RecentRange {
  std::uint32_t first;
  std::uint32_t last;
  const char* category;
};

constexpr RecentRange kRecent[] = {
#include "text/unicode_recent.inc"
};

// One flag per 256 code points, so that ordinary text never reaches the binary search.
std::array<bool, 0x1100> make_pages() {
  std::array<bool, 0x1100> pages{};
  for (const RecentRange& range : kRecent) {
    for (std::uint32_t page = range.first >> 8; page <= range.last >> 8; ++page) pages[page] = true;
  }
  return pages;
}

}  // namespace

bool is_recent(std::uint32_t code_point) {
  static const std::array<bool, 0x1100> pages = make_pages();
  if (!pages[code_point >> 8]) return false;
  const auto* range = std::upper_bound(
      std::begin(kRecent), std::end(kRecent), code_point,
      [](std::uint32_t value, const RecentRange& candidate) { return value < candidate.first; });
  return range != std::begin(kRecent) && code_point <= std::prev(range)->last;
}

bool has_recent(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    // None is below U+0800, so only three and four bytes are worth decoding.
    if (static_cast<unsigned char>(text[at]) < 0xE0) {
      ++at;
    } else if (is_recent(next_code_point(text, at))) {
      return true;
    }
  }
  return false;
}

std::string recent_class_items(std::string_view category) {
  std::string items;
  for (const RecentRange& range : kRecent) {
    if (std::string_view(range.category).substr(0, category.size()) != category) continue;
    items += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  }
  return items;
}

bool is_white_space(std::uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace dsmoe::text

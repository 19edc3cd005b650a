// The well-formedness table of the Unicode standard (table 3-7), one sequence at a time.
#include "base/utf8.h"

#include <fmt/core.h>

#include <cstdint>

namespace dsmoe {

int utf8_sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const uint32_t lead = byte(0);
  if (text.empty()) return 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    // E0 80..9F would be overlong, ED A0..BF are surrogates.
    const bool second =
        tail(1) && (lead != 0xe0 || byte(1) >= 0xa0) && (lead != 0xed || byte(1) < 0xa0);
    return second && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    // F0 80..8F would be overlong, F4 90.. lies beyond U+10FFFF.
    const bool second =
        tail(1) && (lead != 0xf0 || byte(1) >= 0x90) && (lead != 0xf4 || byte(1) < 0x90);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const int length = utf8_sequence_length(text.substr(at));
    if (length == 0) break;
    at += static_cast<std::size_t>(length);
  }
  return at;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  std::string out = "\"";
  std::size_t pos = 0;
  while (pos < text.size() && pos < kMaxBytes) {
    const int length = utf8_sequence_length(text.substr(pos));
    const auto lead = static_cast<unsigned char>(text[pos]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\x{:02x}", lead);
      pos += 1;
      continue;
    }
    out += text.substr(pos, length);
    pos += length;
  }
  out += pos < text.size() ? fmt::format("...\" ({} bytes)", text.size()) : std::string("\"");
  return out;
}

}  // namespace dsmoe

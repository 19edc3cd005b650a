// UTF-8 from strangers: what is well-formed, one code point at a time, what to do with broken
// bytes, and how to quote it in a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsmoe {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the UTF-8 sequence that starts `text` (1 to 4), or 0 if it is not well-formed.
int utf8_sequence_length(std::string_view text);

// End of the longest valid part that begins at `from`.
std::size_t valid_utf8_end(std::string_view text, std::size_t from = 0);

bool is_valid_utf8(std::string_view text);

// Length (1..3) of the ill-formed part at `at`, where valid_utf8_end() stopped: the maximal subpart
// of the Unicode standard, which is what one U+FFFD stands for in most decoders.
std::size_t ill_formed_length(std::string_view text, std::size_t at);

// Number of bytes (0..3) at the end of `text` that begin a character which later bytes may still
// complete.
std::size_t incomplete_tail(std::string_view text);

// Every ill-formed part becomes one U+FFFD.
std::string replace_ill_formed(std::string_view text);

// Quotes text from outside for a message: control characters and broken UTF-8 escaped, cut after 80
// bytes.
std::string in_quotes(std::string_view text);

void append_utf8(std::string& out, std::uint32_t code_point);

// Bytes of the character that starts with `lead`; text must be valid UTF-8.
inline std::size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The code point at `at` of valid UTF-8; advances `at` past it.
inline std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const std::uint32_t lead = byte(0);
  std::uint32_t code = lead;
  switch (utf8_length(static_cast<unsigned char>(lead))) {
    case 1:
      at += 1;
      return code;
    case 2:
      code = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
      at += 2;
      return code;
    case 3:
      code = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
      at += 3;
      return code;
    default:
      code =
          (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
      at += 4;
      return code;
  }
}

// Start of the character that ends before `at` (at > 0) of valid UTF-8.
inline std::size_t previous_char(std::string_view text, std::size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace dsmoe

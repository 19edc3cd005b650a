// Code points that Debian's PCRE2 (Unicode 14) does not know and PyPI `tokenizers` (Unicode 16)
// does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsmoe::text {

// Assigned after Unicode 14. Rare enough that patterns carry these ranges only in a second compiled
// form, used for texts that hold one.
bool is_recent(std::uint32_t code_point);

// Whether valid UTF-8 holds a recent code point.
bool has_recent(std::string_view text);

// The recent code points whose general category starts with `category` ("L", "Lu", ...), as PCRE2
// class items such as "\x{1c89}\x{a7cb}-\x{a7cc}".
std::string recent_class_items(std::string_view category);

// White_Space of Unicode, which no version after 6.3 has changed: what \s means to Oniguruma and to
// Rust.
bool is_white_space(std::uint32_t code_point);

}  // namespace dsmoe::text

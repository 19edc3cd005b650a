// GPT-2's printable stand-ins for the 256 bytes: how byte-level vocabularies are written down in
// JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsmoe::text {

// Printable ASCII and Latin-1 stand for themselves; the other 68 bytes, in order, are U+0100,
// U+0101, ...
std::uint32_t byte_symbol(unsigned char byte);

// "Ġthe" for the bytes " the".
std::string to_byte_symbols(std::string_view bytes);

// The inverse; nothing when a character is no stand-in (special tokens, usually). `symbols` is
// valid UTF-8.
std::optional<std::string> from_byte_symbols(std::string_view symbols);

}  // namespace dsmoe::text

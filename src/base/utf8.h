// UTF-8 from outside: what is well-formed, and how to quote it in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsmoe {

// The length of the UTF-8 sequence that starts `text` (1 to 4), or 0 if it is not well-formed.
int utf8_sequence_length(std::string_view text);

// Number of bytes of the longest valid prefix.
std::size_t valid_utf8_prefix(std::string_view text);

// Quotes text from outside for a message: control characters and broken UTF-8 escaped, cut after 80
// bytes.
std::string in_quotes(std::string_view text);

}  // namespace dsmoe

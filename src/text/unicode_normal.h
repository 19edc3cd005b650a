// Normalization Form C of Unicode: characters that can be written in several ways, in one.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::text {

// Whether no character of the text can be changed by nfc(): a quick answer, sometimes no without
// need.
bool is_surely_nfc(std::string_view text);

// Appends the normal form of valid UTF-8.
void append_nfc(std::string_view text, std::string& out);

}  // namespace dsmoe::text

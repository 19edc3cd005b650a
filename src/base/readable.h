// Numbers and text as a person reads them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsmoe {

std::string with_commas(int64_t value);  // "16,375,728,128"
std::string human_bytes(double bytes);   // "30.5 GiB"
std::string human_number(double value);  // "5.65 G": powers of 1000

// What a model says may hold escape sequences: control characters other than tab and newline become
// U+FFFD. for_terminal() does so where stdout is a terminal; elsewhere the bytes stay as they are.
std::string without_controls(std::string_view text);
std::string for_terminal(std::string_view text);

}  // namespace dsmoe

// The values of "format" that can be written.
#pragma once

#include <string_view>

namespace dsmoe::constrain {

// A regular expression all of whose texts have the format, though the format may have more; null
// for an unknown one.
const char* pattern_of_format(std::string_view format);
// The known ones, for a message.
std::string_view known_formats();

}  // namespace dsmoe::constrain

// Token ids given on the command line or in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::app {

// "1,2,3", "1 2 3", "[1, 2, 3]": ids apart by commas or white space. Throws Error(input) that
// starts with `what`.
std::vector<int32_t> parse_token_list(std::string_view text, std::string_view what);

std::vector<int32_t> read_token_file(const std::string& path);

// A text file of at most 1 GiB.
std::string read_text_file(const std::string& path);
// Standard input to its end, of at most 1 GiB.
std::string read_standard_input();

}  // namespace dsmoe::app

// DSMOE_EXPLAIN=1: lines on stderr that say which way was chosen and why better ones were not. Each
// line comes once per process.
#pragma once

#include <string_view>

namespace dsmoe {

// Cheap enough to ask before a line is put together.
bool is_explaining();
void explain(std::string_view line);

}  // namespace dsmoe

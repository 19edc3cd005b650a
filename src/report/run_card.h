// How a run was made, in words: from its run.json.
#pragma once

#include <filesystem>

#include "base/json.h"

namespace dsmoe::report {

// A list of {"name", "value"}; empty where there is no run.json. Throws Error(input) where that is
// not one.
OrderedJson run_card(const std::filesystem::path& run);

}  // namespace dsmoe::report

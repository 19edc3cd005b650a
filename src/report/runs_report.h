// Several training runs on one page: their curves together, and what differs between them.
#pragma once

#include <filesystem>
#include <vector>

#include "base/json.h"

namespace dsmoe::report {

// From metrics.jsonl and run.json of each. Throws Error(input) on malformed ones, or where a run
// has logged no step.
OrderedJson runs_report(const std::vector<std::filesystem::path>& runs);

}  // namespace dsmoe::report

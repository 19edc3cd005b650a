// A comparison for a terminal, and as JSON.
#pragma once

#include "comparison_folder.h"
#include "output.h"

namespace dsmoe::app {

std::string format_comparison(const Comparison& comparison);
OrderedJson comparison_json(const Comparison& comparison);

}  // namespace dsmoe::app

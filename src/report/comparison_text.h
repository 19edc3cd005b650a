// A comparison for a terminal, as JSON, and for a report.
#pragma once

#include "comparison_folder.h"
#include "output.h"

namespace dsmoe::app {

std::string format_comparison(const Comparison& comparison);
OrderedJson comparison_json(const Comparison& comparison);
OrderedJson comparison_report(const Comparison& comparison);

}  // namespace dsmoe::app

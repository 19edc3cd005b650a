// A comparison for a terminal, as JSON, and for a report.
#pragma once

#include "base/json.h"
#include "report/comparison_folder.h"

namespace dsmoe::report {

std::string format_comparison(const Comparison& comparison);
OrderedJson comparison_json(const Comparison& comparison);
OrderedJson comparison_report(const Comparison& comparison);

}  // namespace dsmoe::report

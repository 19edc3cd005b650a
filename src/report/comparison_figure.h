// A comparison's curves as one SVG that a paper can print.
#pragma once

#include <filesystem>
#include <string>

#include "report/comparison_folder.h"

namespace dsmoe::report {

// Two panels over the tokens trained on: validation loss, and loss minus that of (c) with the same
// seed. Lines are means over seeds, bands reach from the lowest to the highest. Without colour the
// dashes tell models apart. Empty while no run has finished.
std::string comparison_figure(const Comparison& comparison);

// Beside the report: report.html, report.svg. Its path; empty, and nothing written, while no run
// has finished. Throws Error(usage) when the report itself has that name.
std::filesystem::path write_figure(const std::filesystem::path& report,
                                   const Comparison& comparison);

}  // namespace dsmoe::report

// Style and scripts of a report: the files of src/report/page.
#pragma once

#include <string_view>

namespace dsmoe::report {

extern const std::string_view kReportCss;
extern const std::string_view kReportCharts;
extern const std::string_view kReportScript;

}  // namespace dsmoe::report

// Style, script and data around an empty page.
#include "report/report_page.h"

#include <fmt/core.h>

#include "report/report_assets.h"

namespace dsmoe::report {
namespace {

// Inside a script element only "<" could end it; the others are escaped to be safe everywhere.
std::string script_safe(const std::string& json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string report_page(const OrderedJson& data) {
  const std::string json = data.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<title>dsmoe report</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>"
      "<noscript>The charts of this report are drawn by a script inside it.</noscript></main>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<script>\n{}{}</script>\n</body>\n</html>\n",
      kReportCss, script_safe(json), kReportCharts, kReportScript);
}

}  // namespace dsmoe::report

// A report as one HTML file that needs nothing else.
#pragma once

#include <string>

#include "base/json.h"

namespace dsmoe::report {

// The data stands in the page as JSON without "<", ">" and "&", and the page's script puts it into
// text nodes only: nothing in it can become HTML or script. Broken UTF-8 becomes U+FFFD.
std::string report_page(const OrderedJson& data);

}  // namespace dsmoe::report

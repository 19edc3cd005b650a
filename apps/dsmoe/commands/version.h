// Which dsmoe this is.
#pragma once

#include <string>

namespace dsmoe::app {

std::string version();  // "0.1.0"
std::string
commit();  // as git describes it; "unknown" where the program was not built from a checkout

}  // namespace dsmoe::app

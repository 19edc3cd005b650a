// The demo as other commands use it.
#pragma once

#include "options.h"

namespace dsmoe::app {

inline constexpr const char* kDemoFolder = "demo-out";  // where `dsmoe demo` writes

// What `dsmoe demo` without flags does, on the threads and the device of `machine`; goes on with an
// unfinished run.
int train_default_demo(const CommonOptions& machine);

}  // namespace dsmoe::app

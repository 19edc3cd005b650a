// The demo as other commands use it.
#pragma once

namespace dsmoe::app {

inline constexpr const char* kDemoFolder = "demo-out";  // where `dsmoe demo` writes

// What `dsmoe demo` without flags does; goes on with an unfinished run.
int train_default_demo();

}  // namespace dsmoe::app

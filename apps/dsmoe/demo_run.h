// The demo as other commands use it.
#pragma once

#include <cstdint>
#include <functional>

#include "options.h"

namespace dsmoe::app {

inline constexpr const char* kDemoFolder = "demo-out";  // where `dsmoe demo` writes

struct DemoProgress {
  int64_t step = 0, total = 0;
  double loss = 0;
  double seconds_left = 0;  // of the steps
};
using OnDemoProgress = std::function<void(const DemoProgress&)>;

// What `dsmoe demo` without flags does, on the threads and the device of `machine`; goes on with an
// unfinished run. Tells of every step.
int train_default_demo(const CommonOptions& machine, OnDemoProgress on_progress);

}  // namespace dsmoe::app

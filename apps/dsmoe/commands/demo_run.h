// The demo as other commands use it.
#pragma once

#include <functional>

#include "commands/options.h"
#include "serve/training_progress.h"

namespace dsmoe::app {

inline constexpr const char* kDemoFolder = "demo-out";  // where `dsmoe demo` writes

using OnDemoProgress = std::function<void(const serve::TrainingProgress&)>;

// What `dsmoe demo` without flags does, on the threads and the device of `machine`; goes on with an
// unfinished run. Tells of every step.
int train_default_demo(const CommonOptions& machine, OnDemoProgress on_progress);

}  // namespace dsmoe::app

// The demo's result, for people and as JSON.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "report/demo_figures.h"

namespace dsmoe::report {

struct DemoResult {
  std::filesystem::path model;
  const model::ModelConfig& config;
  int64_t steps = 0;
  int64_t tokens = 0;  // trained on by this process
  double seconds = 0;  // of training
  DemoFigures figures;
};

std::string format_demo(const DemoResult& result);
OrderedJson demo_json(const DemoResult& result);

}  // namespace dsmoe::report

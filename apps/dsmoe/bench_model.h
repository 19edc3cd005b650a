// The model a measurement runs: a folder's, or random weights for a bare config.json.
#pragma once

#include <memory>
#include <string>

#include "options.h"

namespace dsmoe::app {

struct BenchModel {
  std::string name;     // the folder or file
  std::string weights;  // "BF16, random"
  std::unique_ptr<model::Model> model;
};

// `options.model` is a folder with weights, or a folder or file with a config only. `num_layers` >
// 0 keeps only the first layers of a config without weights.
BenchModel load_bench_model(const Engine& engine, const CommonOptions& options, int64_t num_layers);

}  // namespace dsmoe::app

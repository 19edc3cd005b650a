// The model a measurement runs: a folder's, or random weights for a bare config.json.
#pragma once

#include <memory>
#include <string>

#include "commands/options.h"

namespace dsmoe::app {

struct BenchModel {
  std::string name;     // the folder or file
  std::string weights;  // "BF16, random"
  std::unique_ptr<model::Model> model;
};

// Of a config without weights.
struct RandomModel {
  int64_t num_layers = 0;        // only the first so many; 0: all
  std::string weights = "bf16";  // or int8, int4: as dsmoe quantize would write it
};

// `options.model` is a folder with weights, or a folder or file with a config only.
BenchModel load_bench_model(const Engine& engine, const CommonOptions& options,
                            const RandomModel& random);

}  // namespace dsmoe::app

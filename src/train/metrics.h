// What a run writes about itself: metrics.jsonl and TensorBoard events.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/event_file.h"
#include "train/routing_stats.h"
#include "train/step.h"

namespace dsmoe::train {

struct StepMetrics {
  int64_t step = 0;
  double lr = 0;
  double seconds = 0;
  uint64_t epoch = 0;
  std::optional<double> validation_loss;
  std::optional<double> first_validation_loss;  // before the first step; on its line only
};

class MetricsLog {
 public:
  struct Options {
    std::filesystem::path run;
    int64_t steps_done = 0;       // lines of later steps, left by an interrupted run, are cut off
    std::vector<int64_t> layers;  // the MoE layers
    int64_t top_k = 0;
    int64_t load_every = 1;  // steps between lines that hold every expert's load
  };
  explicit MetricsLog(const Options& options);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // One line and one event, written through at once.
  void add(const StepMetrics& metrics, const StepResult& result);
  // Before a checkpoint that outlives a power cut: its steps' lines shall, too.
  void sync();

 private:
  Options options_;
  std::string path_;
  std::FILE* file_;
  EventFile events_;
};

}  // namespace dsmoe::train

// What a run writes about itself: metrics.jsonl, metrics.csv and TensorBoard events.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/best_validation.h"
#include "train/event_file.h"
#include "train/metrics_csv.h"
#include "train/routing_stats.h"
#include "train/step.h"
#include "train/validation.h"

namespace dsmoe::train {

// A number that somebody besides the run measures of the model.
struct Figure {
  std::string name;
  double value = 0;
};

struct Measured {
  std::optional<ValidationLoss> validation;
  std::vector<Figure> figures;
};

struct StepMetrics {
  int64_t step = 0;
  double lr = 0;
  double seconds = 0;       // of the step
  double wall_seconds = 0;  // since the one before it ended: with validation, saving and so on
  uint64_t epoch = 0;
  Measured measured;  // after the step
  Measured first;     // before the first step; on its line only
};

class MetricsLog {
 public:
  struct Options {
    std::filesystem::path run;
    int64_t steps_done = 0;       // lines of later steps, left by an interrupted run, are cut off
    std::vector<int64_t> layers;  // the MoE layers
    int64_t top_k = 0;
    int64_t load_every = 1;  // steps between lines that hold every expert's load
    std::vector<std::string> sources, validation_sources;  // one alone is not told apart
    std::vector<std::string> figures;
    OrderedJson recipe = OrderedJson::object();  // hyper-parameters, for TensorBoard
  };
  explicit MetricsLog(const Options& options);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // One line each and one event, written through at once.
  void add(const StepMetrics& metrics, const StepResult& result);
  // Before a checkpoint that outlives a power cut: its steps' lines shall, too.
  void sync();
  // Of the steps that were done before.
  const BestValidation& best_before() const { return best_before_; }

 private:
  // A text file that grows by lines.
  class Lines {
   public:
    explicit Lines(const std::filesystem::path& path);
    ~Lines();
    void add(const std::string& text);
    void sync();

   private:
    std::string path_;
    std::FILE* file_;
  };

  OrderedJson line_of(const StepMetrics& metrics, const StepResult& result) const;
  OrderedJson layers_of(const StepMetrics& metrics, const StepResult& result) const;
  void add_event(const StepMetrics& metrics, const StepResult& result);

  Options options_;
  CsvTable csv_;
  EventFile events_;
  BestValidation best_before_;
  std::unique_ptr<Lines> json_lines_, csv_lines_;
};

}  // namespace dsmoe::train

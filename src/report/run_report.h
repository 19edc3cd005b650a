// What a report shows of one training run.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/context.h"
#include "train/metrics_file.h"

namespace dsmoe::report {

struct RunReportRequest {
  std::filesystem::path run;
  std::vector<std::string> data;  // for the specialisation map; empty: what the run trained on
  int64_t max_tokens = 20000;     // of that text
  int64_t num_samples = 5;
  const std::atomic<bool>* cancelled = nullptr;
};

// From metrics.jsonl and the newest checkpoint that verifies; without one, from the metrics alone.
// Throws Error(input) on malformed metrics or when no step was logged.
OrderedJson run_report(const kernels::Context& context, const RunReportRequest& request);

// The part that comes from the metrics: curves thinned to `max_points`, loads to `max_columns`.
struct CurveLimits {
  std::size_t max_points = 600;
  std::size_t max_columns = 120;
};
OrderedJson metrics_json(const std::vector<train::LoggedStep>& log, const CurveLimits& limits);

// What people call a run: the name of its folder.
std::string run_title(const std::filesystem::path& run);

// Where reports of runs and comparisons go unless told otherwise.
std::filesystem::path report_path(const std::filesystem::path& folder);
void write_report(const std::filesystem::path& file, const OrderedJson& data);

}  // namespace dsmoe::report

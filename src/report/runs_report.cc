// A table of the runs, with the options in which they differ as columns.
#include "report/runs_report.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/readable.h"
#include "report/run_report.h"
#include "train/run_record.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

struct Run {
  std::string name;
  std::vector<train::LoggedStep> log;
  OrderedJson recipe = OrderedJson::object();
};

// Runs of one name are told apart by their paths.
std::vector<Run> read_runs(const std::vector<fs::path>& paths) {
  std::map<std::string, int> uses;
  for (const fs::path& path : paths) ++uses[run_title(path)];
  std::vector<Run> runs;
  for (const fs::path& path : paths) {
    const std::string name = run_title(path);
    Run run{.name = uses[name] > 1 ? path.string() : name,
            .log = train::read_metrics(path / "metrics.jsonl")};
    if (run.log.empty()) fail(ErrorKind::input, "{}: no step was logged yet", path.string());
    if (const auto record = train::RunRecord::read_if_whole(path)) {
      const OrderedJson json = record->json();
      if (json["recipe"].is_object()) run.recipe = json["recipe"];
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

// Keys of the recipe that do not say the same everywhere.
std::vector<std::string> differing_keys(const std::vector<Run>& runs) {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  const auto value = [](const Run& run, const std::string& key) {
    return run.recipe.contains(key) ? run.recipe[key].dump() : "";
  };
  for (const Run& run : runs) {
    for (const auto& [key, ignored] : run.recipe.items()) {
      if (!seen.insert(key).second) continue;
      const bool differs = std::any_of(runs.begin(), runs.end(), [&](const Run& other) {
        return value(other, key) != value(run, key);
      });
      if (differs) keys.push_back(key);
    }
  }
  return keys;
}

std::vector<std::string> figures_of(const Run& run) {
  std::optional<double> validation, bits;
  int64_t tokens = 0;
  double seconds = 0;
  for (const train::LoggedStep& step : run.log) {
    if (step.validation_loss) validation = step.validation_loss;
    if (step.validation_bits_per_byte) bits = step.validation_bits_per_byte;
    tokens += step.tokens;
    seconds += step.wall_seconds;
  }
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.4f}", *value) : std::string();
  };
  return {
      run.name,
      with_commas(run.log.back().step),
      human_number(static_cast<double>(tokens)),
      number(run.log.back().loss),
      number(validation),
      number(bits),
      seconds > 0 ? with_commas(static_cast<int64_t>(static_cast<double>(tokens) / seconds)) : ""};
}

}  // namespace

OrderedJson runs_report(const std::vector<fs::path>& paths) {
  const std::vector<Run> runs = read_runs(paths);
  const std::vector<std::string> keys = differing_keys(runs);
  OrderedJson head{"run",           "steps",   "tokens", "training loss", "validation loss",
                   "bits per byte", "tokens/s"};
  for (const std::string& key : keys) head.push_back(key);
  OrderedJson rows = OrderedJson::array(), curves = OrderedJson::array();
  for (const Run& run : runs) {
    OrderedJson row = figures_of(run);
    for (const std::string& key : keys) {
      const OrderedJson value = run.recipe.value(key, OrderedJson());
      row.push_back(value.is_string() ? value.get<std::string>()
                    : value.is_null() ? std::string()
                                      : value.dump());
    }
    rows.push_back(row);
    OrderedJson metrics = metrics_json(run.log, {.max_points = 300, .max_columns = 1});
    curves.push_back({{"name", run.name},
                      {"steps", metrics["steps"]},
                      {"loss", metrics["loss"]},
                      {"validation", metrics["validation"]}});
  }
  return {{"kind", "runs"}, {"title", fmt::format("{} training runs", runs.size())},
          {"subtitle", ""}, {"tiles", OrderedJson::array()},
          {"head", head},   {"rows", rows},
          {"runs", curves}, {"footer", "Written by dsmoe report. One file, no outside requests."}};
}

}  // namespace dsmoe::report

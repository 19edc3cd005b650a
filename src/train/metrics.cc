// A line of JSON, a row of a table and an event per step.
#include "train/metrics.h"

#include <unistd.h>

#include <cmath>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxLogBytes = std::size_t{4} << 30;

double rounded(double value) { return std::round(value * 1000) / 1000; }

// Names have to be told apart only where there are several.
std::vector<std::string> several(const std::vector<std::string>& names) {
  return names.size() > 1 ? names : std::vector<std::string>();
}

struct Named {
  std::string name;
  double value;
};

std::vector<Named> named(const std::vector<std::string>& names,
                         const std::vector<std::optional<double>>& values) {
  std::vector<Named> result;
  for (std::size_t i = 0; names.size() > 1 && i < values.size(); ++i) {
    if (values[i]) result.push_back({names[i], *values[i]});
  }
  return result;
}

double speed_of(const StepMetrics& metrics, const StepResult& result) {
  return metrics.seconds > 0 ? static_cast<double>(result.tokens) / metrics.seconds : 0;
}

bool has_loads(int64_t step, int64_t every) { return step == 1 || step % every == 0; }

// A logged step; nothing when a crash cut the line short or left zeros in it.
std::optional<OrderedJson> parse_line(const std::string& line) {
  try {
    OrderedJson value = parse_ordered_json(line, "a logged step");
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) {
      return std::nullopt;
    }
    return value;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Keeps the lines up to steps_done, so that the file reads as if the run had never stopped.
void cut_log(const fs::path& path, int64_t steps_done,
             FunctionRef<void(const OrderedJson& line)> on_kept) {
  if (!fs::exists(path)) return;
  const std::string text = read_small_file(path, kMaxLogBytes);
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end - begin);
    const std::optional<OrderedJson> parsed = parse_line(line);
    if (parsed && (*parsed)["step"].get<int64_t>() <= steps_done) {
      kept += line + "\n";
      on_kept(*parsed);
    }
    begin = end + 1;
  }
  if (kept != text) atomic_write_file(path, kept);
}

void update(BestValidation& best, const OrderedJson& line, int64_t step, const char* key) {
  const auto loss = line.find(key);
  if (loss != line.end() && loss->is_number()) best.update(step, loss->get<double>());
}

}  // namespace

MetricsLog::Lines::Lines(const fs::path& path) : path_(path.string()) {
  file_ = std::fopen(path_.c_str(), "abe");
  if (file_ == nullptr) fail_errno("cannot open " + path_);
}

MetricsLog::Lines::~Lines() { std::fclose(file_); }

void MetricsLog::Lines::add(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    fail_errno("cannot write " + path_);
  }
}

void MetricsLog::Lines::sync() {
  if (::fsync(::fileno(file_)) != 0) fail_errno("cannot fsync " + path_);
}

MetricsLog::MetricsLog(const Options& options)
    : options_(options),
      csv_({.sources = several(options.sources),
            .validation_sources = several(options.validation_sources),
            .figures = options.figures,
            .layers = options.layers}),
      events_(options.run, options.steps_done + 1) {
  const fs::path json_path = options.run / "metrics.jsonl", csv_path = options.run / "metrics.csv";
  std::string csv = csv_.header();
  cut_log(json_path, options.steps_done, [&](const OrderedJson& line) {
    csv += csv_.rows(line);
    update(best_before_, line, 0, "first_validation_loss");
    update(best_before_, line, line["step"].get<int64_t>(), "validation_loss");
  });
  atomic_write_file(csv_path, csv);
  json_lines_ = std::make_unique<Lines>(json_path);
  csv_lines_ = std::make_unique<Lines>(csv_path);
  events_.add_hyper_parameters(options.steps_done, options.recipe);
}

MetricsLog::~MetricsLog() = default;

OrderedJson MetricsLog::layers_of(const StepMetrics& metrics, const StepResult& result) const {
  OrderedJson layers = OrderedJson::array();
  for (std::size_t i = 0; i < result.load.size(); ++i) {
    const LayerLoad load = describe_load(result.load[i], options_.top_k);
    OrderedJson layer = {{"layer", options_.layers[i]},
                         {"max_load", rounded(load.max_ratio)},
                         {"dead", load.dead},
                         {"load_entropy", rounded(load.entropy)}};
    if (has_loads(metrics.step, options_.load_every)) {
      layer["load"] = OrderedJson::array();
      for (const double ratio : load.ratio) layer["load"].push_back(rounded(ratio));
    }
    layers.push_back(layer);
  }
  return layers;
}

OrderedJson MetricsLog::line_of(const StepMetrics& metrics, const StepResult& result) const {
  OrderedJson line = {{"step", metrics.step},
                      {"loss", result.language},
                      {"balance_loss", result.balance},
                      {"device_balance_loss", result.device_balance},
                      {"z_loss", result.z},
                      {"lr", metrics.lr},
                      {"gradient_norm", result.gradient_norm},
                      {"epoch", metrics.epoch},
                      {"tokens", result.tokens},
                      {"counted_targets", result.counted},
                      {"seconds", std::round(metrics.seconds * 1e6) / 1e6},
                      {"wall_seconds", std::round(metrics.wall_seconds * 1e6) / 1e6},
                      {"tokens_per_second", rounded(speed_of(metrics, result))}};
  const auto put = [&](const char* key, const std::vector<Named>& values) {
    for (const Named& value : values) line[key][value.name] = value.value;
  };
  put("source_losses", named(options_.sources, losses_of(result.sources, options_.sources.size())));
  for (const auto& [measured, prefix] : {std::pair(&metrics.first, std::string("first_")),
                                         std::pair(&metrics.measured, std::string())}) {
    if (const auto& validation = measured->validation) {
      line[prefix + "validation_loss"] = validation->loss;
      if (const auto& bits = validation->bits_per_byte) {
        line[prefix + "validation_bits_per_byte"] = *bits;
      }
      put((prefix + "validation_source_losses").c_str(),
          named(options_.validation_sources, validation->sources));
    }
    for (const Figure& figure : measured->figures) {
      line[prefix + "figures"][figure.name] = figure.value;
    }
  }
  line["layers"] = layers_of(metrics, result);
  return line;
}

void MetricsLog::add_event(const StepMetrics& metrics, const StepResult& result) {
  EventFile::Event event;
  const auto measured = [&](EventFile::Event& to, const Measured& values) {
    if (values.validation) {
      to.add("loss/validation", values.validation->loss);
      if (const auto& bits = values.validation->bits_per_byte) {
        to.add("loss/validation_bits_per_byte", *bits);
      }
      for (const Named& value : named(options_.validation_sources, values.validation->sources)) {
        to.add("validation_source/" + value.name, value.value);
      }
    }
    for (const Figure& figure : values.figures) to.add("figures/" + figure.name, figure.value);
  };
  if (metrics.first.validation || !metrics.first.figures.empty()) {
    EventFile::Event first;
    measured(first, metrics.first);
    events_.add(0, first);
  }
  event.add("loss/training", result.language);
  event.add("loss/balance", result.balance);
  event.add("loss/z", result.z);
  event.add("optimizer/lr", metrics.lr);
  event.add("optimizer/gradient_norm", result.gradient_norm);
  event.add("speed/tokens_per_second", speed_of(metrics, result));
  for (const Named& value :
       named(options_.sources, losses_of(result.sources, options_.sources.size()))) {
    event.add("source/" + value.name, value.value);
  }
  measured(event, metrics.measured);
  for (std::size_t i = 0; i < result.load.size(); ++i) {
    const LayerLoad load = describe_load(result.load[i], options_.top_k);
    const auto tag = [&](const char* what) {
      return fmt::format("experts/{}/layer_{}", what, options_.layers[i]);
    };
    event.add(tag("max_load"), load.max_ratio);
    event.add(tag("dead"), static_cast<double>(load.dead));
    event.add(tag("load_entropy"), load.entropy);
    if (has_loads(metrics.step, options_.load_every)) {
      event.add_histogram(tag("load"), load.ratio);
    }
  }
  events_.add(metrics.step, event);
}

void MetricsLog::add(const StepMetrics& metrics, const StepResult& result) {
  const OrderedJson line = line_of(metrics, result);
  json_lines_->add(line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  csv_lines_->add(csv_.rows(line));
  add_event(metrics, result);
}

void MetricsLog::sync() {
  json_lines_->sync();
  csv_lines_->sync();
}

}  // namespace dsmoe::train

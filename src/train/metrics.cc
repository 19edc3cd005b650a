// Lines of JSON, one per step.
#include "train/metrics.h"

#include <unistd.h>

#include <cmath>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxLogBytes = std::size_t{4} << 30;

double rounded(double value) { return std::round(value * 1000) / 1000; }

// The step of a line; nothing when a crash cut it short or left zeros in it.
std::optional<int64_t> step_of(const std::string& line) {
  try {
    const Json value = parse_json(line, "a logged step");
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) {
      return std::nullopt;
    }
    return value["step"].get<int64_t>();
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Keeps the lines up to steps_done, so that the file reads as if the run had never stopped.
void cut_log(const fs::path& path, int64_t steps_done) {
  if (!fs::exists(path)) return;
  const std::string text = read_small_file(path, kMaxLogBytes);
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end - begin);
    const std::optional<int64_t> step = step_of(line);
    if (step && *step <= steps_done) kept += line + "\n";
    begin = end + 1;
  }
  if (kept != text) atomic_write_file(path, kept);
}

}  // namespace

MetricsLog::MetricsLog(const Options& options)
    : options_(options),
      path_((options.run / "metrics.jsonl").string()),
      events_(options.run, options.steps_done + 1) {
  cut_log(path_, options.steps_done);
  file_ = std::fopen(path_.c_str(), "abe");
  if (file_ == nullptr) fail_errno("cannot open " + path_);
}

MetricsLog::~MetricsLog() { std::fclose(file_); }

void MetricsLog::add(const StepMetrics& metrics, const StepResult& result) {
  const double speed =
      metrics.seconds > 0 ? static_cast<double>(result.tokens) / metrics.seconds : 0;
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
                      {"tokens_per_second", rounded(speed)}};
  std::vector<Scalar> scalars{{"loss/training", result.language},
                              {"loss/balance", result.balance},
                              {"loss/z", result.z},
                              {"optimizer/lr", metrics.lr},
                              {"optimizer/gradient_norm", result.gradient_norm},
                              {"speed/tokens_per_second", speed}};
  if (metrics.validation_loss) {
    line["validation_loss"] = *metrics.validation_loss;
    scalars.push_back({"loss/validation", *metrics.validation_loss});
  }
  if (metrics.first_validation_loss) {
    line["first_validation_loss"] = *metrics.first_validation_loss;
    const Scalar scalar{"loss/validation", *metrics.first_validation_loss};
    events_.add(0, {&scalar, 1});
  }
  std::vector<std::string> tags;  // stays still: scalars hold views
  tags.reserve(result.load.size() * 3);
  OrderedJson layers = OrderedJson::array();
  for (std::size_t i = 0; i < result.load.size(); ++i) {
    const LayerLoad load = describe_load(result.load[i], options_.top_k);
    OrderedJson layer = {{"layer", options_.layers[i]},
                         {"max_load", rounded(load.max_ratio)},
                         {"dead", load.dead},
                         {"load_entropy", rounded(load.entropy)}};
    if (metrics.step == 1 || metrics.step % options_.load_every == 0) {
      layer["load"] = OrderedJson::array();
      for (const double ratio : load.ratio) layer["load"].push_back(rounded(ratio));
    }
    layers.push_back(layer);
    const auto add = [&](const char* what, double value) {
      tags.push_back(fmt::format("experts/{}/layer_{}", what, options_.layers[i]));
      scalars.push_back({tags.back(), value});
    };
    add("max_load", load.max_ratio);
    add("dead", static_cast<double>(load.dead));
    add("load_entropy", load.entropy);
  }
  line["layers"] = layers;
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    fail_errno("cannot write " + path_);
  }
  events_.add(metrics.step, scalars);
}

void MetricsLog::sync() {
  if (::fsync(::fileno(file_)) != 0) fail_errno("cannot fsync " + path_);
}

}  // namespace dsmoe::train

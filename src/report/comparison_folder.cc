// Settings as JSON, results from the runs' metrics.
#include "report/comparison_folder.h"

#include <algorithm>
#include <charconv>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "store/checkpoint.h"
#include "train/metrics_file.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;

// What must not change while runs are added.
Json fixed_part(const CompareSettings& s) {
  return {{"config", s.base.to_json()},
          {"segments", s.shape.segments},
          {"steps", s.steps},
          {"batch", s.batch},
          {"seq", s.seq},
          {"lr", s.lr.all},
          {"own_lr", s.lr.own},
          {"schedule", s.schedule},
          {"warmup", s.warmup},
          {"valid_rows", s.valid_rows},
          {"data", s.data}};
}

class SettingsReader {
 public:
  SettingsReader(const Json& json, std::string what) : json_(json), what_(std::move(what)) {
    if (!json.is_object()) fail(ErrorKind::input, "{}: expected a JSON object", what_);
  }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(ErrorKind::input, "{}: no \"{}\"", what_, key);
    return *found;
  }
  int64_t count(const char* key, int64_t most) const {
    const Json& value = at(key);
    if (!value.is_number_integer() || value < 0 || value > most) {
      refuse(key, fmt::format("an integer from 0 to {}", most));
    }
    return value.get<int64_t>();
  }
  double number(const char* key) const {
    if (!at(key).is_number()) refuse(key, "a number");
    return at(key).get<double>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, "a string");
    return at(key).get<std::string>();
  }
  // Absent in folders of earlier versions: empty.
  template <class T>
  T optional(const char* key, const char* expected) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return {};
    try {
      return found->get<T>();
    } catch (const Json::exception&) {
      refuse(key, expected);
    }
  }
  bool flag(const char* key) const {
    if (!at(key).is_boolean()) refuse(key, "true or false");
    return at(key).get<bool>();
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ErrorKind::input, "{}: \"{}\" must be {}, found {}", what_, key, expected,
         at(key).dump().substr(0, 60));
  }

 private:
  const Json& json_;
  std::string what_;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Takes the seeds that both have finished.
PairedDifference difference_of(const ModelResult& of, const ModelResult& less) {
  PairedDifference result{.of = of.model.name, .less = less.model.name};
  std::vector<double> values;
  for (const ComparedRun& run : of.runs) {
    for (const ComparedRun& other : less.runs) {
      if (other.seed != run.seed) continue;
      values.push_back(run.validation_loss - other.validation_loss);
      result.pairs.push_back({run.seed, values.back()});
    }
  }
  if (!values.empty()) result.spread = train::spread_of(values);
  return result;
}

const ModelResult& model_named(const Comparison& comparison, const std::string& name) {
  return *std::find_if(comparison.models.begin(), comparison.models.end(),
                       [&](const ModelResult& result) { return result.model.name == name; });
}

double parse_rate(const std::string& word, const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size() || !(rate >= 0 && rate <= 1)) {
    fail(ErrorKind::usage,
         "--lr {}: expected a rate from 0 to 1, or MODEL=RATE for one model's own", word);
  }
  return rate;
}

}  // namespace

double LearningRates::of(std::string_view model) const {
  constexpr std::string_view kFp32 = "-fp32";
  if (const auto found = own.find(std::string(model)); found != own.end()) return found->second;
  if (model.ends_with(kFp32)) return of(model.substr(0, model.size() - kFp32.size()));
  if (model.starts_with("c-shared-")) return of("c");
  return model == "dense-total" ? of("dense") : all;
}

std::string LearningRates::text() const {
  std::string text = fmt::format("{}", all);
  for (const auto& [model, rate] : own) text += fmt::format(", {} {}", model, rate);
  return text;
}

void parse_rates(const std::vector<std::string>& words, LearningRates& rates) {
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      rates.all = parse_rate(word, word);
    } else {
      rates.own[word.substr(0, equals)] = parse_rate(word, word.substr(equals + 1));
    }
  }
}

CompareSettings read_settings(const fs::path& folder) {
  const fs::path path = folder / kCompareFile;
  const Json json = parse_json(read_small_file(path, model::kMaxConfigBytes), path.string());
  const SettingsReader reader(json, path.string());
  if (reader.count("format", 1 << 20) != kFormat) {
    reader.refuse("format", std::to_string(kFormat));
  }
  constexpr int64_t kMost = int64_t{1} << 40;
  CompareSettings settings{
      .base = model::parse_config(reader.at("config").dump(), path.string() + ": config"),
      .shape = {.segments = reader.count("segments", 1 << 20),
                .shared = reader.optional<std::vector<int64_t>>("shared", "a list of integers"),
                .fp32 = reader.optional<std::vector<std::string>>("fp32", "a list of names"),
                .upper_bound = reader.flag("upper_bound")},
      .num_seeds = reader.count("seeds", 1 << 10),
      .steps = reader.count("steps", kMost),
      .batch = reader.count("batch", kMost),
      .seq = reader.count("seq", kMost),
      .warmup = reader.count("warmup", kMost),
      .valid_rows = reader.count("valid_rows", kMost),
      .schedule = reader.text("schedule"),
      .lr = {.all = reader.number("lr"),
             .own = reader.optional<std::map<std::string, double>>("own_lr", "rates by model")},
      .data = reader.text("data"),
      .data_title = reader.text("data_title")};
  if (!reader.at("floor").is_null()) settings.floor = reader.number("floor");
  return settings;
}

void write_settings(const fs::path& folder, const CompareSettings& settings) {
  Json json = fixed_part(settings);
  json["format"] = kFormat;
  json["seeds"] = settings.num_seeds;
  json["shared"] = settings.shape.shared;
  json["fp32"] = settings.shape.fp32;
  json["upper_bound"] = settings.shape.upper_bound;
  json["data_title"] = settings.data_title;
  json["floor"] = settings.floor ? Json(*settings.floor) : Json(nullptr);
  atomic_write_file(folder / kCompareFile, json.dump(2) + "\n");
}

void check_same_comparison(const fs::path& folder, const CompareSettings& settings) {
  CompareSettings found = read_settings(folder);
  if (found.data == settings.former_data) found.data = settings.data;
  const Json before = fixed_part(found), now = fixed_part(settings);
  std::string list;
  for (const auto& [key, value] : now.items()) {
    if (before.at(key) == value) continue;
    list += key == "config" ? "\n  config: the shape differs"
                            : fmt::format("\n  {}: it has {}, now {} is asked for", key,
                                          before.at(key).dump(), value.dump());
  }
  if (list.empty()) return;
  fail(ErrorKind::input,
       "{}: holds another comparison:{}\ngive the same options to go on, or choose another --out",
       folder.string(), list);
}

std::string run_name(const train::ComparedModel& model, int64_t seed) {
  return fmt::format("{}-seed-{}", model.name, seed);
}

std::optional<ComparedRun> read_run(const fs::path& run, int64_t steps) {
  if (!fs::exists(run / store::checkpoint_name(steps) / store::kManifestName) ||
      !fs::exists(run / "metrics.jsonl")) {
    return std::nullopt;
  }
  const std::vector<train::LoggedStep> log = train::read_metrics(run / "metrics.jsonl");
  if (log.empty() || log.back().step != steps || !log.back().validation_loss) return std::nullopt;
  ComparedRun result{.validation_loss = *log.back().validation_loss};
  std::vector<double> speeds;
  for (const train::LoggedStep& step : log) {
    if (step.seconds > 0) speeds.push_back(static_cast<double>(step.tokens) / step.seconds);
    if (step.validation_loss) result.validation.push_back({step.step, *step.validation_loss});
  }
  result.tokens_per_second = median(std::move(speeds));
  return result;
}

Comparison read_comparison(const fs::path& folder) {
  Comparison comparison{.settings = read_settings(folder)};
  const CompareSettings& settings = comparison.settings;
  for (const train::ComparedModel& model : train::compared_models(settings.base, settings.shape)) {
    ModelResult result{.model = model,
                       .experts = train::count_expert_parameters(model.config, settings.base)};
    std::vector<double> losses, speeds;
    for (int64_t seed = 1; seed <= settings.num_seeds; ++seed) {
      std::optional<ComparedRun> run = read_run(folder / run_name(model, seed), settings.steps);
      if (!run) continue;
      run->seed = seed;
      losses.push_back(run->validation_loss);
      speeds.push_back(run->tokens_per_second);
      result.runs.push_back(std::move(*run));
    }
    if (!losses.empty()) result.loss = train::spread_of(losses);
    result.tokens_per_second = median(std::move(speeds));
    comparison.models.push_back(std::move(result));
  }
  const ModelResult& base = model_named(comparison, "c");
  for (ModelResult& result : comparison.models) {
    const PairedDifference excess = difference_of(result, base);
    result.excess = excess.spread;
    result.num_pairs = excess.pairs.size();
    if (result.model.less.empty()) continue;
    PairedDifference difference = difference_of(result, model_named(comparison, result.model.less));
    if (!difference.pairs.empty()) comparison.differences.push_back(std::move(difference));
  }
  return comparison;
}

std::optional<std::string> decided_best(const Comparison& comparison) {
  std::vector<const ModelResult*> ranked;
  for (const ModelResult& result : comparison.models) {
    const bool is_bound = result.model.name.find("total") != std::string::npos;
    if (!result.runs.empty() && !is_bound) ranked.push_back(&result);
  }
  if (ranked.size() < 2) return std::nullopt;
  const ModelResult& best = **std::min_element(
      ranked.begin(), ranked.end(),
      [](const ModelResult* a, const ModelResult* b) { return a->loss.mean < b->loss.mean; });
  for (const ModelResult* other : ranked) {
    if (other == &best) continue;
    const PairedDifference difference = difference_of(best, *other);
    const std::size_t seeds = difference.pairs.size();
    if (seeds != best.runs.size() || seeds != other->runs.size()) return std::nullopt;
    if (!(difference.spread.mean + train::half_width_95(difference.spread, seeds) < 0)) {
      return std::nullopt;
    }
  }
  return best.model.name;
}

}  // namespace dsmoe::report

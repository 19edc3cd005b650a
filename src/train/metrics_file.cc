// One JSON object per line, every field checked.
#include "train/metrics_file.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace dsmoe::train {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{4} << 30;
constexpr std::size_t kMaxExperts = 8192;  // as a config may have

// The fields of one object; `what` is file and line.
class Fields {
 public:
  Fields(const Json& object, const std::string& what) : object_(object), what_(what) {
    if (!object.is_object()) fail(ErrorKind::input, "{}: expected a JSON object", what);
  }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  double number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) {
      refuse(key, "a number", value);
    }
    return value->get<double>();
  }
  // By name; none where the key is missing.
  std::vector<std::pair<std::string, double>> numbers(const char* key) const {
    std::vector<std::pair<std::string, double>> values;
    const Json* object = find(key);
    if (object == nullptr) return values;
    if (!object->is_object()) refuse(key, "an object", object);
    for (const auto& [name, value] : object->items()) {
      if (!value.is_number() || !std::isfinite(value.get<double>())) {
        refuse(key, "an object of numbers", object);
      }
      values.emplace_back(name, value.get<double>());
    }
    return values;
  }
  int64_t count(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_number_integer() || *value < 0 ||
        *value > (int64_t{1} << 53)) {
      refuse(key, "a count", value);
    }
    return value->get<int64_t>();
  }
  [[noreturn]] void refuse(const char* key, const char* expected, const Json* found) const {
    fail(ErrorKind::input, "{}: \"{}\" must be {}, found {}", what_, key, expected,
         found == nullptr ? "nothing" : found->dump().substr(0, 60));
  }

 private:
  const Json& object_;
  const std::string& what_;
};

LoggedLayer parse_layer(const Json& json, const std::string& what) {
  const Fields fields(json, what);
  LoggedLayer layer{.layer = fields.count("layer"),
                    .max_load = fields.number("max_load"),
                    .dead = fields.count("dead"),
                    .load_entropy = fields.number("load_entropy")};
  const Json* load = fields.find("load");
  if (load == nullptr) return layer;
  if (!load->is_array() || load->empty() || load->size() > kMaxExperts) {
    fields.refuse("load", "an array with a number per expert", load);
  }
  for (const Json& ratio : *load) {
    if (!ratio.is_number() || !(ratio.get<double>() >= 0)) {
      fields.refuse("load", "an array of ratios", load);
    }
    layer.load.push_back(ratio.get<double>());
  }
  return layer;
}

LoggedStep parse_step(const Json& json, const std::string& what) {
  const Fields fields(json, what);
  LoggedStep step{.step = fields.count("step"),
                  .loss = fields.number("loss"),
                  .balance_loss = fields.number("balance_loss"),
                  .device_balance_loss = fields.number("device_balance_loss"),
                  .z_loss = fields.number("z_loss"),
                  .lr = fields.number("lr"),
                  .gradient_norm = fields.number("gradient_norm"),
                  .tokens = fields.count("tokens"),
                  .seconds = fields.number("seconds")};
  if (fields.find("validation_loss") != nullptr) {
    step.validation_loss = fields.number("validation_loss");
  }
  step.wall_seconds =
      fields.find("wall_seconds") != nullptr ? fields.number("wall_seconds") : step.seconds;
  if (fields.find("validation_bits_per_byte") != nullptr) {
    step.validation_bits_per_byte = fields.number("validation_bits_per_byte");
  }
  if (fields.find("first_validation_loss") != nullptr) {
    step.first_validation_loss = fields.number("first_validation_loss");
  }
  step.source_losses = fields.numbers("source_losses");
  step.validation_source_losses = fields.numbers("validation_source_losses");
  step.figures = fields.numbers("figures");
  const Json* layers = fields.find("layers");
  if (layers == nullptr || !layers->is_array()) fields.refuse("layers", "an array", layers);
  for (const Json& layer : *layers) step.layers.push_back(parse_layer(layer, what));
  return step;
}

// Readers of many lines count on it.
void check_alike(const LoggedStep& before, const LoggedStep& step, const std::string& what) {
  if (step.step <= before.step) {
    fail(ErrorKind::input, "{}: step {} follows step {}; steps must ascend", what, step.step,
         before.step);
  }
  bool alike = step.layers.size() == before.layers.size();
  for (std::size_t i = 0; alike && i < step.layers.size(); ++i) {
    alike = step.layers[i].layer == before.layers[i].layer;
  }
  if (!alike) fail(ErrorKind::input, "{}: other MoE layers than on the line before", what);
}

}  // namespace

std::vector<LoggedStep> parse_metrics(std::istream& stream, const std::string& name) {
  std::vector<LoggedStep> steps;
  std::string line;
  for (int64_t number = 1; std::getline(stream, line); ++number) {
    if (stream.eof()) break;
    const std::string what = fmt::format("{}:{}", name, number);
    LoggedStep step = parse_step(parse_json(line, what), what);
    if (!steps.empty()) check_alike(steps.back(), step, what);
    steps.push_back(std::move(step));
  }
  if (stream.bad()) fail_errno("cannot read " + name);
  return steps;
}

std::vector<LoggedStep> read_metrics(const std::filesystem::path& file) {
  const OpenFile opened = open_regular_file(file);  // a pipe would wait for its writer
  ::close(opened.descriptor);
  if (opened.size > kMaxFileBytes) {
    fail(ErrorKind::input, "{}: {} bytes, at most {} are read", file.string(), opened.size,
         kMaxFileBytes);
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail_errno("cannot open " + file.string());
  return parse_metrics(stream, file.string());
}

}  // namespace dsmoe::train

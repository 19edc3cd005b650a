// Columns are paths into a line of JSON.
#include "train/metrics_csv.h"

#include <fmt/core.h>

#include <charconv>

namespace dsmoe::train {
namespace {

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

const OrderedJson* find(const OrderedJson& value, const std::string& key) {
  if (value.is_object()) {
    const auto found = value.find(key);
    return found == value.end() ? nullptr : &*found;
  }
  std::size_t idx = 0;
  std::from_chars(key.data(), key.data() + key.size(), idx);
  return value.is_array() && idx < value.size() ? &value[idx] : nullptr;
}

}  // namespace

CsvTable::CsvTable(const Columns& columns) {
  for (const char* name :
       {"step", "loss", "validation_loss", "validation_bits_per_byte", "balance_loss",
        "device_balance_loss", "z_loss", "lr", "gradient_norm", "epoch", "tokens",
        "counted_targets", "seconds", "wall_seconds", "tokens_per_second"}) {
    columns_.push_back({name, {name}});
  }
  const auto add_all = [&](const char* key, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      columns_.push_back({fmt::format("{}: {}", key, name), {key, name}});
    }
  };
  add_all("source_losses", columns.sources);
  add_all("validation_source_losses", columns.validation_sources);
  add_all("figures", columns.figures);
  for (std::size_t i = 0; i < columns.layers.size(); ++i) {
    for (const char* name : {"max_load", "dead", "load_entropy"}) {
      columns_.push_back({fmt::format("{}: layer {}", name, columns.layers[i]),
                          {"layers", std::to_string(i), name}});
    }
  }
}

std::string CsvTable::header() const {
  std::string text;
  for (const Column& column : columns_) text += (text.empty() ? "" : ",") + cell(column.name);
  return text + "\n";
}

std::string CsvTable::row(const OrderedJson& line) const {
  std::string text;
  for (const Column& column : columns_) {
    const OrderedJson* value = &line;
    for (const std::string& key : column.path) {
      value = value == nullptr ? nullptr : find(*value, key);
    }
    if (!text.empty() || &column != &columns_.front()) text += ",";
    if (value != nullptr && value->is_number()) text += value->dump();
  }
  return text + "\n";
}

std::string CsvTable::rows(const OrderedJson& line) const {
  std::string text;
  if (line.contains("first_validation_loss")) {
    OrderedJson first{{"step", 0}, {"validation_loss", line["first_validation_loss"]}};
    for (const char* key : {"validation_bits_per_byte", "validation_source_losses", "figures"}) {
      const std::string name = std::string("first_") + key;
      if (line.contains(name)) first[key] = line[name];
    }
    text = row(first);
  }
  return text + row(line);
}

}  // namespace dsmoe::train

// Reads metrics.jsonl back: for reports and comparisons.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dsmoe::train {

struct LoggedLayer {
  int64_t layer = 0;
  double max_load = 0;
  int64_t dead = 0;
  double load_entropy = 0;
  std::vector<double> load;  // per expert, as a ratio to the fair share; empty on most lines
};

struct LoggedStep {
  int64_t step = 0;
  double loss = 0, balance_loss = 0, device_balance_loss = 0, z_loss = 0;
  double lr = 0, gradient_norm = 0;
  int64_t tokens = 0;
  double seconds = 0;
  double wall_seconds = 0;  // those of the step where an earlier program wrote the line
  std::optional<double> validation_loss;
  std::optional<double> validation_bits_per_byte;
  std::optional<double> first_validation_loss;  // before the first step
  std::vector<std::pair<std::string, double>> source_losses, validation_source_losses, figures;
  std::vector<LoggedLayer> layers;  // the MoE layers, the same on every line
};

// Steps ascend. A last line without an end is one being written: it is left out. Throws
// Error(input) with file, line and key when a line is not what a run writes, Error(io) when there
// is no file.
std::vector<LoggedStep> read_metrics(const std::filesystem::path& file);
// The same of an open stream; `name` stands for the file in messages.
std::vector<LoggedStep> parse_metrics(std::istream& stream, const std::string& name);

}  // namespace dsmoe::train

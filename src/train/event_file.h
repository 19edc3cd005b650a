// TensorBoard event files: scalars, histograms and hyper-parameters, readable by the tensorboard
// package.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace dsmoe::train {

// One file per process that trains. `first_step` > 1: earlier files' points from there on are no
// longer shown.
class EventFile {
 public:
  EventFile(const std::filesystem::path& folder, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // What one step shows.
  class Event {
   public:
    void add(std::string_view tag, double value);
    // How many of the values lie where.
    void add_histogram(std::string_view tag, std::span<const double> values);

   private:
    friend class EventFile;
    std::string summary_;
  };
  void add(int64_t step, const Event& event);
  // Numbers, words and truths of an object, for the table of runs; what else it holds is told as
  // its JSON.
  void add_hyper_parameters(int64_t step, const OrderedJson& parameters);

 private:
  void write_record(const std::string& event);
  void write_summary(int64_t step, std::string_view summary);

  std::string path_;
  std::FILE* file_;
};

// CRC-32C (Castagnoli, reflected 0x82f63b78).
uint32_t crc32c(std::string_view bytes);

// A length-delimited record as TFRecord frames it.
std::string tf_record(std::string_view data);

}  // namespace dsmoe::train

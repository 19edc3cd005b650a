// TensorBoard event files: scalars, readable by the tensorboard package.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe::train {

struct Scalar {
  std::string_view tag;
  double value;
};

// One file per process that trains. `first_step` > 1: earlier files' points from there on are no
// longer shown.
class EventFile {
 public:
  EventFile(const std::filesystem::path& folder, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void add(int64_t step, std::span<const Scalar> scalars);

 private:
  void write_record(const std::string& event);

  std::string path_;
  std::FILE* file_;
};

// CRC-32C (Castagnoli, reflected 0x82f63b78).
uint32_t crc32c(std::string_view bytes);

// A length-delimited record as TFRecord frames it.
std::string tf_record(std::string_view data);

}  // namespace dsmoe::train

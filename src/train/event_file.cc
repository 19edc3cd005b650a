// The few protobuf fields of an Event, by hand, in TFRecord frames.
#include "train/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace dsmoe::train {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

template <class T>
void append_little_endian(std::string& out, T value) {
  char bytes[sizeof(T)];
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Protobuf wire types.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void append_key(std::string& out, uint32_t field, Wire wire) {
  append_varint(out, field << 3 | wire);
}
void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7.
std::string event_head(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_key(event, 1, kFixed64);
  append_little_endian(event, std::chrono::duration<double>(now).count());
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view data) {
  const auto masked = [](std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
  };
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(data.size()));
  append_little_endian(record, masked(record));
  record += data;
  append_little_endian(record, masked(data));
  return record;
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step) {
  char host[64] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  path_ =
      (folder / fmt::format("events.out.tfevents.{}.{}.{}", seconds, host, ::getpid())).string();
  file_ = std::fopen(path_.c_str(), "abe");
  if (file_ == nullptr) fail_errno("cannot create " + path_);
  std::string version = event_head(0);
  append_bytes(version, 3, "brain.Event:2");
  write_record(version);
  if (first_step > 1) {
    std::string restart = event_head(first_step);
    std::string session;
    append_key(session, 1, kVarint);  // SessionLog.status = START
    append_varint(session, 1);
    append_bytes(restart, 7, session);
    write_record(restart);
  }
}

EventFile::~EventFile() { std::fclose(file_); }

void EventFile::write_record(const std::string& event) {
  const std::string record = tf_record(event);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() ||
      std::fflush(file_) != 0) {
    fail_errno("cannot write " + path_);
  }
}

void EventFile::write_summary(int64_t step, std::string_view summary) {
  std::string event = event_head(step);
  append_bytes(event, 5, summary);
  write_record(event);
}

void EventFile::add(int64_t step, const Event& event) { write_summary(step, event.summary_); }

// Summary.Value: tag 1, simple_value 2.
void EventFile::Event::add(std::string_view tag, double value) {
  std::string entry;
  append_bytes(entry, 1, tag);
  append_key(entry, 2, kFixed32);
  append_little_endian(entry, static_cast<float>(value));
  append_bytes(summary_, 1, entry);
}

// Summary.Value: tag 1, histo 5. HistogramProto: min 1, max 2, num 3, sum 4, sum_squares 5,
// bucket_limit 6, bucket 7; the last two packed.
void EventFile::Event::add_histogram(std::string_view tag, std::span<const double> values) {
  if (values.empty()) return;
  constexpr std::size_t kBuckets = 30;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double min = *low, max = *high, width = (max - min) / kBuckets;
  double sum = 0, squares = 0;
  std::array<double, kBuckets> counts{};
  for (const double value : values) {
    sum += value;
    squares += value * value;
    const double at = width > 0 ? (value - min) / width : 0;
    counts[std::min(static_cast<std::size_t>(at), kBuckets - 1)] += 1;
  }
  std::string limits, buckets;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    const bool is_last = i + 1 == kBuckets;
    append_little_endian(limits, is_last ? max : min + width * static_cast<double>(i + 1));
    append_little_endian(buckets, counts[i]);
  }
  std::string histogram;
  uint32_t field = 0;
  for (const double value : {min, max, static_cast<double>(values.size()), sum, squares}) {
    append_key(histogram, ++field, kFixed64);
    append_little_endian(histogram, value);
  }
  append_bytes(histogram, 6, limits);
  append_bytes(histogram, 7, buckets);
  std::string entry;
  append_bytes(entry, 1, tag);
  append_bytes(entry, 5, histogram);
  append_bytes(summary_, 1, entry);
}

namespace {

// google.protobuf.Value: number 2, string 3, bool 4.
std::string protobuf_value(const OrderedJson& value) {
  std::string bytes;
  if (value.is_number()) {
    append_key(bytes, 2, kFixed64);
    append_little_endian(bytes, value.get<double>());
  } else if (value.is_boolean()) {
    append_key(bytes, 4, kVarint);
    append_varint(bytes, value.get<bool>() ? 1 : 0);
  } else {
    append_bytes(bytes, 3, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return bytes;
}

}  // namespace

// The plugin "hparams" reads its own message, HParamsPluginData: version 1, session_start_info 3.
// SessionStartInfo: hparams 1, a map of key 1 to value 2; start_time_secs 5. It lies in
// Summary.Value's metadata 9: plugin_data 1, of plugin_name 1 and content 2.
void EventFile::add_hyper_parameters(int64_t step, const OrderedJson& parameters) {
  if (parameters.empty()) return;
  std::string start;
  for (const auto& [key, value] : parameters.items()) {
    std::string entry;
    append_bytes(entry, 1, key);
    append_bytes(entry, 2, protobuf_value(value));
    append_bytes(start, 1, entry);
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  append_key(start, 5, kFixed64);
  append_little_endian(start, std::chrono::duration<double>(now).count());
  std::string content;
  append_bytes(content, 3, start);
  std::string plugin, metadata, value, summary;
  append_bytes(plugin, 1, "hparams");
  append_bytes(plugin, 2, content);
  append_bytes(metadata, 1, plugin);
  append_bytes(value, 1, "_hparams_/session_start_info");
  append_bytes(value, 9, metadata);
  append_bytes(summary, 1, value);
  write_summary(step, summary);
}

}  // namespace dsmoe::train

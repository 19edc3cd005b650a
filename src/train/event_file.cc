// The few protobuf fields of an Event, by hand, in TFRecord frames.
#include "train/event_file.h"

#include <unistd.h>

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

void EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;  // Summary.Value: tag 1, simple_value 2
    append_bytes(value, 1, scalar.tag);
    append_key(value, 2, kFixed32);
    append_little_endian(value, static_cast<float>(scalar.value));
    append_bytes(summary, 1, value);
  }
  std::string event = event_head(step);
  append_bytes(event, 5, summary);
  write_record(event);
}

}  // namespace dsmoe::train

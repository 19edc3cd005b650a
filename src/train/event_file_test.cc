#include "train/event_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/scratch_folder.h"

namespace dsmoe::train {
namespace {

TEST(EventFile, Crc32cKnownAnswers) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);            // the catalogue's check value
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
}

struct Records {
  std::vector<std::string> data;
  bool whole = true;
};
Records read_records(const std::string& bytes) {
  Records records;
  for (std::size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    const std::string data = bytes.substr(at + 12, length);
    const std::string again = tf_record(data);
    records.whole = records.whole && bytes.compare(at, again.size(), again) == 0;
    records.data.push_back(data);
    at += again.size();
  }
  return records;
}

TEST(EventFile, HoldsVersionRestartAndScalars) {
  ScratchFolder folder;
  {
    EventFile file(folder.path(), 8);
    EventFile::Event event;
    event.add("loss", 2.5);
    event.add("lr", 1e-3);
    file.add(8, event);
  }
  const auto path = std::filesystem::directory_iterator(folder.path())->path();
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  std::ifstream stream(path, std::ios::binary);
  const Records records = read_records({std::istreambuf_iterator<char>(stream), {}});
  EXPECT_TRUE(records.whole);
  ASSERT_EQ(records.data.size(), 3u);
  // Events after the wall time (9 bytes): step, then the field.
  EXPECT_EQ(records.data[0].substr(9), std::string("\x10\x00\x1a\x0d", 4) + "brain.Event:2");
  EXPECT_EQ(records.data[1].substr(9), std::string("\x10\x08\x3a\x02\x08\x01"));
  EXPECT_EQ(records.data[2].substr(9),
            std::string("\x10\x08\x2a\x18", 4) +
                std::string("\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40", 13) +
                std::string("\x0a\x09\x0a\x02lr\x15\x6f\x12\x83\x3a"));
}

}  // namespace
}  // namespace dsmoe::train

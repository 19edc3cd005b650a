// Memory of machines made of files; what does not fit is refused.
#include "base/system_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "base/scratch_folder.h"

namespace dsmoe {
namespace {

constexpr int64_t kKiB = 1024;

class FakeMemory : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  const ScratchFolder scratch_;
  const std::string root_ = scratch_.path().string();
};

TEST_F(FakeMemory, NothingReadableIsNoLimit) {
  EXPECT_EQ(system_memory(root_).most, INT64_MAX);
  EXPECT_EQ(system_memory(root_).available, INT64_MAX);
}

TEST_F(FakeMemory, RamAndSwap) {
  file("/proc/meminfo",
       "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nSwapTotal: 50 kB");
  EXPECT_EQ(system_memory(root_).most, 1050 * kKiB);
  EXPECT_EQ(system_memory(root_).available, 600 * kKiB);
}

TEST_F(FakeMemory, TheTightestGroupCounts) {
  file("/proc/meminfo", "MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal: 0 kB");
  file("/proc/self/cgroup", "0::/a/b");
  file("/sys/fs/cgroup/memory.max", "max");
  file("/sys/fs/cgroup/a/b/memory.max", std::to_string(500 * kKiB));
  EXPECT_EQ(system_memory(root_).most, 500 * kKiB);
  file("/sys/fs/cgroup/a/memory.max", std::to_string(400 * kKiB));
  EXPECT_EQ(system_memory(root_).most, 400 * kKiB);
  EXPECT_EQ(system_memory(root_).available, 400 * kKiB);
  file("/sys/fs/cgroup/memory.max", std::to_string(300 * kKiB));
  EXPECT_EQ(system_memory(root_).most, 300 * kKiB);
}

TEST(ExpectMemory, RefusesWhatCanNotBe) {
  set_log_level(LogLevel::quiet);
  const SystemMemory memory{.most = 1000, .available = 600};
  expect_memory("it", 500, memory);
  expect_memory("it", 1000, memory);  // warns
  EXPECT_THROW(expect_memory("it", 1001, memory), Error);
  EXPECT_GT(system_memory().most, 0);
}

}  // namespace
}  // namespace dsmoe

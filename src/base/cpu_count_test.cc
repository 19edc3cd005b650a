// Core counting on machines made of files: SMT siblings, quotas of both cgroup versions, nothing
// readable.
#include "base/cpu_count.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/scratch_folder.h"

namespace dsmoe {
namespace {

class FakeMachine : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  void siblings(int cpu, const std::string& list) {
    file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
         list);
  }

  const ScratchFolder scratch_;
  const std::string root_ = scratch_.path().string();
};

TEST_F(FakeMachine, NothingReadableCountsEveryCpu) {
  EXPECT_EQ(count_physical_cores({0, 1, 2}, root_), 3);
}

TEST_F(FakeMachine, SiblingsAreOneCore) {
  siblings(0, "0,2");
  siblings(1, "1,3");
  siblings(2, "0,2");
  siblings(3, "1,3");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 2);
  EXPECT_EQ(count_physical_cores({0, 2}, root_), 1);
  EXPECT_EQ(count_physical_cores({2, 3}, root_), 2);
}

TEST_F(FakeMachine, QuotaOfVersion2CountsUpwards) {
  file("/proc/self/cgroup", "0::/pod/container");
  file("/sys/fs/cgroup/pod/container/cpu.max", "max 100000");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 4);
  file("/sys/fs/cgroup/pod/cpu.max", "250000 100000");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 3);
  file("/sys/fs/cgroup/pod/container/cpu.max", "10000 100000");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 1);
}

TEST_F(FakeMachine, QuotaOfVersion1) {
  file("/proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/docker/of-the-host");
  file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 4);
  file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000");
  file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3}, root_), 2);
}

TEST_F(FakeMachine, NonsenseDoesNotLimit) {
  file("/proc/self/cgroup", "nonsense\n0::no/slash/at/front\n::\n0::/");
  file("/sys/fs/cgroup/cpu.max", "many few");
  EXPECT_EQ(count_physical_cores({0, 1}, root_), 2);
}

TEST(CpuCount, ThisMachineHasACore) {
  EXPECT_FALSE(available_cpus().empty());
  EXPECT_GE(available_physical_cores(), 1);
  EXPECT_LE(available_physical_cores(), static_cast<int>(available_cpus().size()));
}

}  // namespace
}  // namespace dsmoe

// Files that are cut while they are mapped: named by whoever copies, and by the last word of a
// program that asked for it.
#include "base/map_fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "base/thread_pool.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPage = 4096;

class MapFault : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    atomic_write_file(path_, std::string(4 * kPage, 'x'));
  }
  static char touch(const MappedFile& file, std::size_t at) {
    return *reinterpret_cast<const volatile char*>(file.bytes().data() + at);
  }

  ScratchFolder folder_;
  fs::path path_ = folder_ / "weights";
};
using MapFaultDeathTest = MapFault;

TEST_F(MapFaultDeathTest, NamesTheFileAndExitsWith1) {
  const auto die = [&] {
    end_on_map_faults();
    const MappedFile other(path_);
    MappedFile moved_from(path_);
    const MappedFile file(std::move(moved_from));
    { const MappedFile closed(path_); }
    fs::resize_file(path_, kPage);
    touch(file, 0);
    ThreadPool pool(3);
    pool.run([&](int thread_idx, int) {
      touch(file, kPage * static_cast<std::size_t>(1 + thread_idx));
    });
  };
  EXPECT_EXIT(die(), ::testing::ExitedWithCode(1),
              "^dsmoe: [^\n]*/weights: was cut while in use: expected the 16384 bytes it had when "
              "it was opened, it has 4096\n$");
}

TEST_F(MapFaultDeathTest, LeavesOtherFaultsToTheHandlerBefore) {
  const auto die = [&](auto fault) {
    ::signal(SIGBUS, [](int) { ::_exit(7); });
    end_on_map_faults();
    end_on_map_faults();
    const MappedFile file(path_);
    fault();
  };
  const auto touch_other_map = [&] {
    const OpenFile file = open_regular_file(path_);
    void* data = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
    fs::resize_file(path_, 0);
    (void)*static_cast<volatile char*>(data);
  };
  EXPECT_EXIT(die(touch_other_map), ::testing::ExitedWithCode(7), "^$");
  EXPECT_EXIT(die([] { ::raise(SIGBUS); }), ::testing::ExitedWithCode(7), "^$");
}

TEST_F(MapFaultDeathTest, ALibraryInstallsNothing) {
  const auto die = [&] {
    ::signal(SIGBUS, SIG_DFL);  // sanitizers have one of their own
    const MappedFile file(path_);
    fs::resize_file(path_, 0);
    touch(file, 0);
  };
  EXPECT_EXIT(die(), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MapFault, WritingFromACutMapNamesIt) {
  const MappedFile file(path_);
  fs::resize_file(path_, kPage);
  AtomicFile copy(folder_ / "copy");
  try {
    copy.write_at(0, file.bytes());
    FAIL() << "wrote what is not there";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              path_.string() +
                  ": was cut while in use: expected the 16384 bytes it had when it was opened, it "
                  "has 4096");
  }
  EXPECT_EQ(describe_map_fault(&copy), "");
}

}  // namespace
}  // namespace dsmoe

// What a process keeps of the memory it has freed.
#include "base/memory_return.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace dsmoe {
namespace {

int resident_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atoi(line.c_str() + 8) >> 10;
  }
  return 0;
}

// Large bodies come and go, and something small that came last stays.
int kept_mebibytes() {
  const int before = resident_mebibytes();
  std::string small;
  std::thread([&] {
    constexpr std::size_t kLarge = std::size_t{4} << 20;
    std::string(2 * kLarge, 'x').shrink_to_fit();
    std::vector<std::string> bodies(16);
    for (std::string& body : bodies) body.assign(kLarge, 'x');
    small.assign(100, 'x');
  }).join();
  return resident_mebibytes() - before;
}

// In a process of its own: what is set there is set for good.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MemoryReturn, LargeBlocksGoBackWhenTheyAreFreed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has its own allocator";
#endif
  EXPECT_GE(in_child([] { return kept_mebibytes(); }), 60) << "nothing is to be done here any more";
  EXPECT_LE(in_child([] {
              give_freed_memory_back();
              return kept_mebibytes();
            }),
            4);
}

}  // namespace
}  // namespace dsmoe

// fork, setrlimit, and a pipe for the message.
#include "refusal.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <new>

#include "base/error.h"

namespace dsmoe::malformed {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCanLimit = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kCanLimit = false;
#else
constexpr bool kCanLimit = true;
#endif
#else
constexpr bool kCanLimit = true;
#endif

std::size_t mapped_now() {
  std::ifstream in("/proc/self/statm");
  std::size_t pages = 0;
  in >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Free memory kept by malloc would widen the limit: large blocks get mappings of their own, given
// back when freed, and the heap is trimmed before the limit is set.
const bool kLargeBlocksAreMapped = ::mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1;

void limit_memory(std::size_t more) {
  if (!kCanLimit) return;
  ::malloc_trim(0);
  const rlim_t limit = mapped_now() + more;
  const rlimit value = {limit, limit};
  if (::setrlimit(RLIMIT_AS, &value) != 0) ::_exit(3);
}

// Exit status 0: refused as it should be; 1: anything else that left a message.
[[noreturn]] void child(const std::function<void()>& read, std::size_t file_bytes, int out) {
  limit_memory(file_bytes + kMemoryBudget);
  ::alarm(60);
  std::string text = "accepted";
  int status = 1;
  try {
    read();
  } catch (const Error& e) {
    text = e.what();
    status = e.kind() == ErrorKind::input ? 0 : 1;
  } catch (const std::bad_alloc&) {
    text = "out of memory";
  } catch (const std::exception& e) {
    text = std::string("another exception: ") + e.what();
  }
  if (text.size() > 4000) text = text.substr(0, 4000);
  const ssize_t written = ::write(out, text.data(), text.size());
  ::_exit(written == static_cast<ssize_t>(text.size()) ? status : 4);
}

}  // namespace

Refusal run_limited(const std::function<void()>& read, std::size_t file_bytes) {
  int ends[2] = {};
  if (::pipe(ends) != 0) return {.text = "no pipe"};
  const pid_t pid = ::fork();
  if (pid < 0) return {.text = "no process"};
  if (pid == 0) child(read, file_bytes, ends[1]);
  ::close(ends[1]);
  Refusal refusal;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    refusal.text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) refusal.text = "signal " + std::to_string(WTERMSIG(status));
  refusal.refused = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return refusal;
}

void expect_refused(const std::function<void()>& read, std::size_t file_bytes,
                    const std::string& fault) {
  const Refusal refusal = run_limited(read, file_bytes);
  EXPECT_TRUE(refusal.refused) << refusal.text;
  EXPECT_NE(refusal.text.find(fault), std::string::npos)
      << "expected: " << fault << "\nfound: " << refusal.text;
  EXPECT_LT(refusal.text.size(), 800u) << refusal.text;
  EXPECT_EQ(refusal.text.find('\n'), std::string::npos) << refusal.text;
}

TEST(Limit, BitesWhereItShould) {
  const auto take = [](std::size_t bytes) {
    return [bytes] {
      std::string text(bytes, 'x');
      fail(ErrorKind::input, "took {}", text.size());
    };
  };
  ASSERT_TRUE(kLargeBlocksAreMapped || !kCanLimit);
  EXPECT_TRUE(run_limited(take(kMemoryBudget / 2), 0).refused);
  // The reading of /proc is itself good for some pages of heap, hence 1 MiB and not 1 byte.
  EXPECT_EQ(run_limited(take(kMemoryBudget + (1 << 20)), 0).refused, !kCanLimit);
  EXPECT_EQ(run_limited([] {}, 0).text, "accepted");
  EXPECT_FALSE(run_limited([] { fail(ErrorKind::io, "x"); }, 0).refused);
  EXPECT_EQ(run_limited([] { ::raise(SIGKILL); }, 0).text, "signal 9");
}

}  // namespace dsmoe::malformed

// Readers that read, stop, leave, and come back.
#include "base/background_writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/scratch_folder.h"

namespace dsmoe {
namespace {

std::string note(uint64_t lost) { return fmt::format("{} lost\n", lost); }

class BackgroundWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);  // for good: a writer's thread may outlive its test
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_ = ends[0];
    write_end_ = ends[1];
  }
  void TearDown() override {
    close_reader();
    if (write_end_ >= 0) ::close(write_end_);
  }
  void close_reader() {
    if (read_end_ >= 0) ::close(read_end_);
    read_end_ = -1;
  }
  // Reads until `what` has come; what came, or after a minute what there is.
  std::string read_until(const std::string& what) {
    std::string text;
    pollfd input{.fd = read_end_, .events = POLLIN, .revents = 0};
    while (text.find(what) == std::string::npos && ::poll(&input, 1, 60'000) == 1) {
      char bytes[4096];
      const ssize_t count = ::read(read_end_, bytes, sizeof bytes);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }

  int read_end_ = -1, write_end_ = -1;
};

TEST_F(BackgroundWriterTest, WritesInOrderAndFlushes) {
  BackgroundWriter writer(write_end_, note);
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = fmt::format("line {}\n", i);
    writer.write(line);
    expected += line;
  }
  writer.flush();
  ::close(write_end_);
  write_end_ = -1;
  EXPECT_EQ(read_until("never"), expected);
}

TEST_F(BackgroundWriterTest, AReaderThatStopsHoldsNobodyUpAndIsToldWhatItMissed) {
  BackgroundWriter writer(write_end_, note);
  const std::string line(99, 'x');
  constexpr uint64_t kLines = 20'000;  // 2 MB: far more than pipe and queue hold
  for (uint64_t i = 0; i < kLines; ++i) writer.write(line + "\n");
  // A thread that comes late loses some before its first write, and others after it.
  uint64_t seen = 0, lost = 0;
  std::string text;
  for (bool has_come = true; seen + lost < kLines && has_come;) {
    const std::string piece = read_until("\n");
    has_come = !piece.empty();
    text += piece;
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      const std::string one = text.substr(0, end);
      const uint64_t count = one == line ? 0 : std::strtoull(one.c_str(), nullptr, 10);
      lost += count;
      if (one == line) {
        ++seen;
      } else {
        EXPECT_EQ(one + "\n", note(count));
      }
    }
  }
  EXPECT_EQ(seen + lost, kLines);
  EXPECT_GE(seen * 100, BackgroundWriter::kMaxPending - 100);
  EXPECT_GT(lost, 0u);
  writer.write("after\n");
  EXPECT_EQ(read_until("after\n"), "after\n");
}

TEST_F(BackgroundWriterTest, AReaderThatHasGoneIsNoErrorAndMayComeBack) {
  const ScratchFolder scratch;
  const std::string fifo = (scratch / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  close_reader();
  read_end_ = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const int descriptor = ::open(fifo.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  {
    BackgroundWriter writer(descriptor, note);
    writer.write("first\n");
    EXPECT_EQ(read_until("\n"), "first\n");
    close_reader();
    writer.write("nobody\n");
    writer.flush();
    writer.write("reads\nthis\n");
    writer.flush();
    read_end_ = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    writer.write("again\n");
    EXPECT_EQ(read_until("again\n"), "3 lost\nagain\n");
  }
  ::close(descriptor);
}

TEST_F(BackgroundWriterTest, EndsThoughNobodyReads) {
  std::optional<BackgroundWriter> writer(std::in_place, write_end_, note);
  for (int i = 0; i < 2000; ++i) writer->write(std::string(99, 'x') + "\n");
  writer.reset();   // returns
  write_end_ = -1;  // its thread still has it
}

}  // namespace
}  // namespace dsmoe

// Files that appear whole or not at all, and reading that refuses what is no regular file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int64_t num_entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

template <class F>
std::string message_of(ErrorKind kind, F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(AtomicFile, AppearsWhenCommittedAndNotBefore) {
  const ScratchFolder folder;
  atomic_write_file(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write_at(3, std::as_bytes(std::span(std::string_view("def"))));
    file.write_at(0, std::as_bytes(std::span(std::string_view("abc"))));
    EXPECT_EQ(read_small_file(folder / "f", 10), "old");
    file.commit();
  }
  EXPECT_EQ(read_small_file(folder / "f", 10), "abcdef");
  EXPECT_EQ(num_entries(folder.path()), 1);
}

TEST(AtomicFile, LeavesNothingWhenAbandoned) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "f");
    file.write_at(0, std::as_bytes(std::span(std::string_view("abc"))));
  }
  EXPECT_EQ(num_entries(folder.path()), 0);
  EXPECT_NE(message_of(ErrorKind::io, [&] { AtomicFile(folder / "missing" / "f"); }).find("create"),
            std::string::npos);
}

TEST(MappedFile, GivesAndReadsTheBytes) {
  const ScratchFolder folder;
  atomic_write_file(folder / "f", "abcdef");
  MappedFile first(folder / "f");
  const MappedFile file(std::move(first));
  EXPECT_EQ(text_of(file.bytes()), "abcdef");
  file.release(file.bytes());
  EXPECT_EQ(text_of(file.bytes()), "abcdef");
  std::byte part[3];
  file.read(2, part);
  EXPECT_EQ(text_of(part), "cde");
  EXPECT_NE(message_of(ErrorKind::io, [&] { file.read(4, part); }).find("ends at byte 6"),
            std::string::npos);
  EXPECT_NO_THROW(file.check_length());
  fs::resize_file(folder / "f", 2);
  EXPECT_NE(message_of(ErrorKind::io, [&] { file.check_length(); }).find("it had 6 bytes"),
            std::string::npos);
  message_of(ErrorKind::io, [&] { file.read(0, part); });  // shortened while open: not a fault
  atomic_write_file(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"", "pipe", "/dev/zero"}) {
    EXPECT_NE(message_of(ErrorKind::input, [&] { MappedFile(folder / name); }).find("regular"),
              std::string::npos);
  }
  message_of(ErrorKind::io, [&] { MappedFile(folder / "missing"); });
}

TEST(IsListed, AlsoALinkToNothing) {
  const ScratchFolder folder;
  fs::create_symlink("gone", folder / "link");
  EXPECT_TRUE(is_listed(folder / "link"));
  EXPECT_TRUE(is_listed(folder.path()));
  EXPECT_FALSE(is_listed(folder / "missing"));
  EXPECT_FALSE(is_listed(folder / "missing" / "f"));
}

TEST(ReadSmallFile, RefusesALongFileBeforeReadingIt) {
  const ScratchFolder folder;
  atomic_write_file(folder / "f", "abcdef");
  EXPECT_EQ(read_small_file(folder / "f", 6), "abcdef");
  EXPECT_NE(message_of(ErrorKind::input, [&] { read_small_file(folder / "f", 5); })
                .find("6 bytes, at most 5"),
            std::string::npos);
}

}  // namespace
}  // namespace dsmoe

// Files that appear whole or not at all, and reading that refuses what is no regular file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

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

TEST(AtomicFile, PutsNoFileInThePlaceOfADevice) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_directory(folder / "folder");
  fs::create_symlink("/dev/null", folder / "link");
  for (const char* name : {"pipe", "folder", "link"}) {
    const std::string message =
        message_of(ErrorKind::io, [&] { atomic_write_file(folder / name, "x"); });
    EXPECT_NE(message.find("expected a regular file or nothing there"), std::string::npos)
        << message;
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(num_entries(folder.path()), 3);
}

// As a process leaves it that is killed: its lock is gone.
fs::path leave(const fs::path& folder, const std::string& name) {
  atomic_write_file(folder / "killed", "half");
  fs::rename(folder / "killed", folder / name);
  return folder / name;
}

TEST(Leftovers, AreRemovedByTheNextWriterOfTheTarget) {
  const ScratchFolder folder;
  leave(folder.path(), ".f.tmp-1-1");
  fs::create_directory(folder / ".f.tmp-2-0");
  leave(folder / ".f.tmp-2-0", "weights");
  const std::vector<fs::path> others = {
      leave(folder.path(), ".g.tmp-1-1"), leave(folder.path(), ".f.tmp-1-1.bak"),
      leave(folder.path(), ".f.tmp-1"), leave(folder.path(), "f.tmp-1-1"),
      leave(folder.path(), ".f.tmp-3-3.tmp-1-1")};
  atomic_write_file(folder / "f", "whole");
  EXPECT_EQ(read_small_file(folder / "f", 10), "whole");
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other)) << other;
  EXPECT_EQ(num_entries(folder.path()), static_cast<int64_t>(others.size()) + 1);
}

TEST(Leftovers, AreNotWhatIsBeingWritten) {
  const ScratchFolder folder;
  AtomicFile file(folder / "f");
  file.write_at(0, std::as_bytes(std::span(std::string_view("one"))));
  HiddenName staging(folder / "g", HiddenName::Kind::folder);
  atomic_write_file(staging.path() / "weights", "w");
  leave(folder.path(), ".h.tmp-1-1");
  EXPECT_EQ(leftovers_in(folder.path()), std::vector<fs::path>{folder / ".h.tmp-1-1"});
  atomic_write_file(folder / "f", "two");
  EXPECT_THROW(HiddenName(folder / "missing" / "g", HiddenName::Kind::folder), Error);
  remove_leftovers_in(folder.path(), "g");  // nothing of ours is called so
  EXPECT_TRUE(fs::exists(folder / ".h.tmp-1-1"));
  remove_leftovers_in(folder.path(), "h");
  EXPECT_FALSE(fs::exists(folder / ".h.tmp-1-1"));
  file.commit();
  EXPECT_EQ(read_small_file(folder / "f", 10), "one");
  staging.rename();
  EXPECT_EQ(read_small_file(folder / "g" / "weights", 10), "w");
  EXPECT_TRUE(leftovers_in(folder.path()).empty());
  EXPECT_TRUE(leftovers_in(folder / "missing").empty());
}

// A name is new and not locked yet when the next maker looks for leftovers.
TEST(Leftovers, MakersOfOneTargetDoNotRemoveEachOthers) {
  const ScratchFolder folder;
  std::atomic<int> failures{0};
  std::vector<std::thread> makers;
  for (int maker = 0; maker < 4; ++maker) {
    makers.emplace_back(
        [&, kind = maker % 2 == 0 ? HiddenName::Kind::folder : HiddenName::Kind::file] {
          for (int i = 0; i < 200; ++i) {
            try {
              const HiddenName name(folder / "f", kind);
              if (!fs::exists(name.path())) ++failures;
            } catch (const Error& error) {
              ++failures;
            }
          }
        });
  }
  for (std::thread& maker : makers) maker.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(num_entries(folder.path()), 0);
}

TEST(Leftovers, TheSecondOfTwoWritersOfAFolderIsTold) {
  const ScratchFolder folder;
  HiddenName first(folder / "g", HiddenName::Kind::folder);
  {
    HiddenName second(folder / "g", HiddenName::Kind::folder);
    for (const auto* name : {&first, &second}) atomic_write_file(name->path() / "x", "x");
    first.rename();
    EXPECT_NE(message_of(ErrorKind::io, [&] { second.rename(); }).find("another process"),
              std::string::npos);
  }
  EXPECT_EQ(num_entries(folder.path()), 1);
}

TEST(NewFolder, LeavesNoEmptyOne) {
  const ScratchFolder folder;
  fs::create_directory(folder / "mine");
  { const NewFolder created(folder / "mine" / "a" / "b" / ""); }
  EXPECT_TRUE(fs::is_empty(folder / "mine"));
  { const NewFolder created(folder / "mine"); }
  EXPECT_TRUE(fs::exists(folder / "mine"));
  {
    const NewFolder created(folder / "a" / "b" / "c");
    atomic_write_file(folder / "a" / "b" / "f", "x");
  }
  EXPECT_TRUE(fs::exists(folder / "a" / "b" / "f"));
  EXPECT_FALSE(fs::exists(folder / "a" / "b" / "c"));
  message_of(ErrorKind::io, [&] { NewFolder(folder / "a" / "b" / "f" / "g" / "h"); });
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

#include "store/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/failing_disk.h"
#include "base/scratch_folder.h"
#include "store/hf_folder.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;
using tensor::DType;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void write_checkpoint(const fs::path& run, int64_t step, float value = 1) {
  std::vector<float> numbers(20, value);
  const tensor::TensorView view{.data = numbers.data(), .dtype = DType::F32, .shape = {20}};
  CheckpointWriter writer(run, step,
                          {.model = {{"a", DType::F32, {20}}, {"b", DType::F32, {20}}},
                           .state = {{"master.a", DType::F32, {20}}},
                           .state_metadata = {{"step", std::to_string(step)}}});
  writer.add_file("config.json", "{}\n");
  writer.write_model("a", view);
  writer.write_model("b", view);
  writer.write_state("master.a", view);
  writer.commit();
}

std::string reason_of(const fs::path& folder) {
  try {
    verify_checkpoint(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(Checkpoint, Names) {
  EXPECT_EQ(checkpoint_name(100), "step-00000100");
  EXPECT_EQ(checkpoint_step("step-00000100"), 100);
  EXPECT_EQ(checkpoint_step("step-1234567890"), 1234567890);
  for (const char* name : {"step-", "step-1", "step-0000010x", ".step-00000100", "step-00000100.x",
                           "step-00000001234", "x", "step--0000001"}) {
    EXPECT_FALSE(checkpoint_step(name)) << name;
  }
}

TEST(Checkpoint, WrittenAgainGivesTheSameBytes) {
  ScratchFolder one, two;
  write_checkpoint(one.path(), 7);
  write_checkpoint(two.path(), 7);
  EXPECT_EQ(entries(one / "step-00000007"), 4u);
  for (const auto& entry : fs::directory_iterator(one / "step-00000007")) {
    EXPECT_EQ(contents(entry.path()), contents(two / "step-00000007" / entry.path().filename()));
  }
  EXPECT_EQ(HfFolder::open(one / "step-00000007").names().size(), 2u);
  EXPECT_THROW(write_checkpoint(one.path(), 7), Error) << "a good one is never replaced";
}

TEST(Checkpoint, EveryBitOfDamageIsFound) {
  ScratchFolder run;
  write_checkpoint(run.path(), 1);
  const fs::path folder = run / "step-00000001";
  EXPECT_EQ(reason_of(folder), "");
  for (const char* name :
       {"config.json", "model.safetensors", "train_state.safetensors", "MANIFEST.json"}) {
    const std::string whole = contents(folder / name);
    for (std::size_t at = 0; at < whole.size(); at += 1 + whole.size() / 40) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
      overwrite(folder / name, damaged);
      EXPECT_NE(reason_of(folder), "") << name << " byte " << at;
      overwrite(folder / name, whole.substr(0, at));
      EXPECT_NE(reason_of(folder), "") << name << " cut at " << at;
    }
    fs::remove(folder / name);
    EXPECT_NE(reason_of(folder), "") << name << " missing";
    overwrite(folder / name, whole);
    EXPECT_EQ(reason_of(folder), "");
  }
}

TEST(Checkpoint, NewestThatVerifiesIsTaken) {
  ScratchFolder run;
  EXPECT_FALSE(newest_checkpoint(run.path()).folder);
  EXPECT_FALSE(newest_checkpoint(run / "absent").folder);
  for (const int64_t step : {1, 2, 3}) write_checkpoint(run.path(), step);
  fs::create_directory(run / "step-00000009");  // empty: no manifest
  overwrite(run / "step-00000003" / "config.json", "{  }\n");
  const NewestCheckpoint newest = newest_checkpoint(run.path());
  EXPECT_EQ(newest.folder, run / "step-00000002");
  EXPECT_EQ(newest.step, 2);
  ASSERT_EQ(newest.passed_over.size(), 2u);
  EXPECT_EQ(newest.passed_over[0].name, "step-00000009");
  EXPECT_NE(newest.passed_over[0].reason.find("MANIFEST.json"), std::string::npos);
  EXPECT_NE(newest.passed_over[1].reason.find("the manifest says 3"), std::string::npos)
      << newest.passed_over[1].reason;
  write_checkpoint(run.path(), 3);  // the damaged one is replaced
  EXPECT_EQ(newest_checkpoint(run.path()).step, 3);
}

TEST(Checkpoint, KeepsTheLastAndMilestones) {
  ScratchFolder run;
  for (int64_t step = 1; step <= 9; ++step) write_checkpoint(run.path(), step);
  fs::create_directory(run / "step-00000099");
  remove_old_checkpoints(run.path(), {.last = 2, .every = 3}, 9);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(run.path()))
    left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"step-00000003", "step-00000006", "step-00000008",
                                            "step-00000009", "step-00000099"}));
}

TEST(Checkpoint, DamagedOnesPushNoGoodOnesOut) {
  ScratchFolder run;
  for (int64_t step = 1; step <= 5; ++step) write_checkpoint(run.path(), step);
  const std::vector<int64_t> damaged{3, 4, 9};
  remove_old_checkpoints(run.path(), {.last = 2}, 5, damaged);
  EXPECT_TRUE(fs::exists(run / "step-00000005"));
  EXPECT_TRUE(fs::exists(run / "step-00000002"));
  EXPECT_EQ(entries(run.path()), 2u);
}

TEST(Checkpoint, RoomIsMadeOfOlderOnesOnly) {
  ScratchFolder run;
  for (int64_t step = 1; step <= 5; ++step) write_checkpoint(run.path(), step);
  const Retention retention{.last = 9, .every = 2};
  const CheckpointRoom room = checkpoint_room(run.path(), retention, 5, 100);
  EXPECT_EQ(room.num_kept, 3);  // 1, 3, 5: 2 and 4 are kept for good
  EXPECT_EQ(room.available, 100u);
  const uint64_t each = room.removable / 2;
  ASSERT_GT(each, 500u);

  EXPECT_TRUE(make_room(run.path(), retention, 5, 100, 100).empty()) << "there is room";
  EXPECT_TRUE(make_room(run.path(), retention, 5, 100 + room.removable + 1, 100).empty())
      << "nothing is given up in vain";
  EXPECT_EQ(entries(run.path()), 5u);
  EXPECT_EQ(make_room(run.path(), retention, 5, 101, 100),
            std::vector<std::string>{"step-00000001"});
  EXPECT_EQ(make_room(run.path(), retention, 5, 100 + each, 100),
            std::vector<std::string>{"step-00000003"});
  EXPECT_TRUE(make_room(run.path(), retention, 5, 101, 100).empty()) << "the newest stays";
  EXPECT_EQ(newest_checkpoint(run.path()).step, 5);
  EXPECT_EQ(entries(run.path()), 3u);
}

TEST(Checkpoint, AnyFailedWriteLeavesTheOldOneWhole) {
  for (const int code : {ENOSPC, EIO}) {
    ScratchFolder run;
    write_checkpoint(run.path(), 1);
    int failures = 0;
    for (int at = 0;; ++at) {
      FailingDisk::countdown = at;
      FailingDisk::failure = code;
      std::string message;
      try {
        write_checkpoint(run.path(), 2);
      } catch (const Error& error) {
        message = error.what();
      }
      const bool was_reached = FailingDisk::countdown < 0;
      FailingDisk::countdown = -1;
      if (!was_reached) break;
      // The last fsync, of RUN itself, comes after the rename: the new one is there and whole.
      EXPECT_NE(message, "") << "call " << at;
      if (code == ENOSPC) {
        EXPECT_NE(message.find("missing"), std::string::npos) << message;
      }
      EXPECT_EQ(reason_of(run / "step-00000001"), "") << "call " << at;
      const NewestCheckpoint newest = newest_checkpoint(run.path());
      EXPECT_TRUE(newest.passed_over.empty()) << "call " << at;
      if (newest.step == 2) fs::remove_all(run / "step-00000002");
      EXPECT_EQ(entries(run.path()), 1u) << "nothing is left behind after call " << at;
      ++failures;
    }
    EXPECT_GT(failures, 15);
    EXPECT_EQ(newest_checkpoint(run.path()).step, 2);
  }
}

TEST(Checkpoint, LeftoversOfACrashAreRemoved) {
  ScratchFolder run;
  write_checkpoint(run.path(), 1);
  fs::create_directory(run / ".step-00000002.tmp-1-1");
  overwrite(run / ".step-00000002.tmp-1-1" / "x", "x");
  overwrite(run / "metrics.jsonl", "");
  remove_leftovers_in(run.path(), kCheckpointPrefix);
  EXPECT_EQ(entries(run.path()), 2u);
}

// A checkpoint that was moved elsewhere and linked, and a file that only has such a name.
TEST(Checkpoint, LinksGoAndWhatTheyLeadToStays) {
  ScratchFolder run, elsewhere;
  write_checkpoint(run.path(), 1);
  fs::rename(run / "step-00000001", elsewhere / "moved");
  fs::create_directory_symlink(elsewhere / "moved", run / "step-00000001");
  overwrite(run / "step-00000002", "a file");
  write_checkpoint(run.path(), 3);
  remove_old_checkpoints(run.path(), {.last = 1}, 3, {});
  EXPECT_FALSE(fs::is_symlink(run / "step-00000001"));
  EXPECT_TRUE(fs::exists(elsewhere / "moved" / kManifestName));
  EXPECT_TRUE(fs::is_regular_file(run / "step-00000002"));
}

TEST(RunLock, TheSecondWriterIsRefused) {
  ScratchFolder scratch;
  const fs::path run = scratch / "a/b";
  {
    const RunLock first(run);
    try {
      const RunLock second(run);
      FAIL() << "locked twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resource);
      EXPECT_NE(std::string(error.what()).find(std::to_string(::getpid())), std::string::npos);
    }
  }
  const RunLock again(run);
}

// Its target would be cut to nothing.
TEST(RunLock, ALinkIsNoLock) {
  ScratchFolder scratch;
  const fs::path precious = scratch / "precious", run = scratch / "run";
  std::ofstream(precious) << "text";
  fs::create_directory(run);
  fs::create_symlink(precious, run / ".lock");
  EXPECT_THROW(RunLock{run}, Error);
  EXPECT_EQ(fs::file_size(precious), 4u);
}

}  // namespace
}  // namespace dsmoe::store

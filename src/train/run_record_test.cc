// What run.json holds after a start, an end, a kill, and a start that failed.
#include "train/run_record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

class RunRecordTest : public ::testing::Test {
 protected:
  std::string bytes() const { return read_small_file(path(), std::size_t{1} << 20); }
  fs::path path() const { return folder_.path() / kRunRecordName; }
  void put(const std::string& text) const { std::ofstream(path()) << text; }
  std::string fault() const {
    try {
      RunRecord::read(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  ScratchFolder folder_;
  SessionFacts facts_{.command = {"dsmoe", "train", "\xff"},
                      .version = "1.2.3",
                      .commit = "abc",
                      .machine = {{"host", "here"}},
                      .changed = {}};
};

TEST_F(RunRecordTest, NothingIsThere) { EXPECT_FALSE(RunRecord::read(folder_.path())); }

TEST_F(RunRecordTest, ASessionFromBeginToEnd) {
  RunRecord record(folder_.path(), "train");
  record.begin(facts_, {{"--batch", "4"}});
  OrderedJson json = RunRecord::read(folder_.path())->json();
  EXPECT_EQ(json["sessions"][0]["end"], "going on");
  EXPECT_TRUE(json["sessions"][0]["ended"].is_null());
  EXPECT_EQ(json["sessions"][0]["command"][2], "\"\\xff\"");
  record.describe({.config = {{"vocab_size", 7}},
                   .recipe = {{"batch", 4}},
                   .data = OrderedJson::array({{{"path", "a"}}})});
  record.start(0);
  record.end(30, "finished");
  json = RunRecord::read(folder_.path())->json();
  EXPECT_EQ(json["program"], "train");
  EXPECT_EQ(json["options"]["--batch"], "4");
  EXPECT_EQ(json["recipe"]["batch"], 4);
  EXPECT_EQ(json["data"][0]["path"], "a");
  const OrderedJson& session = json["sessions"][0];
  EXPECT_EQ(session["end"], "finished");
  EXPECT_EQ(session["first_step"], 1);
  EXPECT_EQ(session["last_step"], 30);
  EXPECT_EQ(session["version"], "1.2.3");
  EXPECT_EQ(session["ended"].get<std::string>().size(), std::string("2026-11-19T20:16:34Z").size());
  EXPECT_FALSE(session.contains("changed"));
}

TEST_F(RunRecordTest, ASecondSessionSaysThatTheFirstWasKilled) {
  RunRecord(folder_.path(), "train").begin(facts_, {{"--steps", "3"}});
  RunRecord second = *RunRecord::read(folder_.path());
  facts_.changed = {"--steps 5 instead of 3"};
  second.begin(facts_, {{"--steps", "5"}});
  const OrderedJson json = RunRecord::read(folder_.path())->json();
  ASSERT_EQ(json["sessions"].size(), 2u);
  EXPECT_EQ(json["sessions"][0]["end"], "killed");
  EXPECT_EQ(json["sessions"][1]["end"], "going on");
  EXPECT_EQ(json["sessions"][1]["changed"][0], "--steps 5 instead of 3");
  EXPECT_EQ(json["options"]["--steps"], "5");
}

// Checkpoints may have been damaged, or removed to start afresh.
TEST_F(RunRecordTest, TheBestOfStepsThatWereLostIsForgotten) {
  RunRecord record(folder_.path(), "train");
  record.begin(facts_, {{"--steps", "30"}});
  record.set_best({.loss = 2.5, .step = 20, .since = 0});
  record.start(20);
  ASSERT_TRUE(RunRecord::read(folder_.path())->best());
  EXPECT_EQ(RunRecord::read(folder_.path())->best()->step, 20);
  record.start(19);
  EXPECT_FALSE(RunRecord::read(folder_.path())->best());
}

TEST_F(RunRecordTest, AFailedStartIsTakenBack) {
  RunRecord first(folder_.path(), "train");
  first.begin(facts_, {});
  first.take_back();
  EXPECT_FALSE(fs::exists(path()));
  first.begin(facts_, {{"--steps", "3"}});
  first.end(3, "finished");
  const std::string before = bytes();
  RunRecord second = *RunRecord::read(folder_.path());
  second.begin(facts_, {{"--steps", "5"}});
  EXPECT_NE(bytes(), before);
  second.take_back();
  EXPECT_EQ(bytes(), before);
}

TEST_F(RunRecordTest, WhatIsNoRecordIsRefused) {
  put("{");
  EXPECT_NE(fault().find("run.json"), std::string::npos) << fault();
  put("[]");
  EXPECT_NE(fault().find("expected a JSON object"), std::string::npos) << fault();
  put(R"({"format": 2})");
  EXPECT_NE(fault().find("format 2, this program reads 1"), std::string::npos) << fault();
  put(R"({"format": 1, "options": []})");
  EXPECT_NE(fault().find("\"options\" must be object, it is array"), std::string::npos) << fault();
  put(R"({"format": 1, "sessions": [3]})");
  EXPECT_NE(fault().find("a session must be an object"), std::string::npos) << fault();
}

TEST(Machine, NamesWhatItRunsOn) {
  const OrderedJson machine = describe_machine();
  EXPECT_FALSE(machine.at("host").get<std::string>().empty());
  EXPECT_GE(machine.at("cores").get<int>(), 1);
  EXPECT_FALSE(machine.at("cpu").get<std::string>().empty());
}

}  // namespace
}  // namespace dsmoe::train

// RUN/run.json: who made a run, of what and how, and how each of its sessions ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "train/best_validation.h"

namespace dsmoe::train {

inline constexpr std::string_view kRunRecordName = "run.json";

// A session is one process that trains. What it knows of itself before its first step.
struct SessionFacts {
  std::vector<std::string> command;             // the words of the command line
  std::string version, commit;                  // of the program
  OrderedJson machine = OrderedJson::object();  // describe_machine() and what the command adds
  std::vector<std::string> changed;             // options that differ from those before, in words
};

// The file as a whole. Every change is written at once and whole: readers see the one before or the
// one after. One process at a time may write (store::RunLock).
class RunRecord {
 public:
  // What lies in `run`; nothing where no run.json is. Throws Error(input) where it is not one.
  static std::optional<RunRecord> read(const std::filesystem::path& run);
  // The same for those who only look: a damaged file is told, and then there is none.
  static std::optional<RunRecord> read_if_whole(const std::filesystem::path& run);
  // None there yet: `program` is the command that trains.
  RunRecord(std::filesystem::path run, std::string program);

  const std::string& program() const { return program_; }
  // What the command needs to go on: "--batch" -> "4" or a list of values.
  const OrderedJson& options() const { return options_; }
  // The files as they were described last.
  const OrderedJson& data() const { return description_.data; }
  // The best checkpoint that the run keeps.
  void set_best(const BestValidation& best);  // written
  struct Best {
    int64_t step = 0;
    double loss = 0;
  };
  std::optional<Best> best() const { return best_; }
  // The whole file, for reports.
  OrderedJson json() const;

  // A session that is going on. One before it without an end was killed: that is noted.
  void begin(const SessionFacts& facts, OrderedJson options);
  struct Description {
    OrderedJson config = OrderedJson::object();  // of the model
    OrderedJson recipe = OrderedJson::object();
    OrderedJson data = OrderedJson::array();  // files with sizes and hashes
  };
  void describe(Description description);
  void set_options(OrderedJson options) { options_ = std::move(options); }  // written with the next
  // The session goes on from `steps_done`: a best of a later step is none of its own.
  void start(int64_t steps_done);
  // `how`: "finished", "stopped by a signal", "failed: ...".
  void end(int64_t steps_done, std::string_view how);
  // What this session wrote is taken back: the file is as it was before begin(), or gone.
  void take_back() noexcept;

 private:
  void write() const;

  std::filesystem::path run_;
  std::string program_;
  OrderedJson options_ = OrderedJson::object();
  Description description_;
  OrderedJson sessions_ = OrderedJson::array();
  std::optional<Best> best_;
  std::string before_;  // the file's bytes; empty: there was none
};

// Host, system, CPU, memory.
OrderedJson describe_machine();

// "2026-11-19T20:16:34Z".
std::string utc_now();

}  // namespace dsmoe::train

// Reads and writes run.json; keys stand in the order in which a person asks for them.
#include "train/run_record.h"

#include <sys/utsname.h>

#include <chrono>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/cpu_count.h"
#include "base/cpu_features.h"
#include "base/engine_version.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/system_memory.h"
#include "base/utf8.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;
constexpr const char* kGoingOn = "going on";

// `key` of an object, of the type that `like` has.
OrderedJson field(const OrderedJson& object, const char* key, const OrderedJson& like,
                  const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end()) return like;
  if (found->type() != like.type()) {
    fail(ErrorKind::input, "{}: \"{}\" must be {}, it is {}; repair it or move it away", what, key,
         like.type_name(), found->type_name());
  }
  return *found;
}

OrderedJson parsed(const std::string& text, const std::string& what) {
  try {
    return parse_ordered_json(text, what);
  } catch (const Error& error) {
    fail(ErrorKind::input,
         "{}\nrepair it, or move it away and go on with the run's options given again",
         error.what());
  }
}

// Words from the command line may be any bytes.
std::string readable(const std::string& text) {
  return is_valid_utf8(text) ? text : in_quotes(text);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

OrderedJson describe_machine() {
  utsname system{};
  ::uname(&system);
  OrderedJson machine{{"host", readable(system.nodename)},
                      {"system", fmt::format("{} {}", system.sysname, system.release)},
                      {"cpu", cpu_features().brand},
                      {"cores", available_physical_cores()}};
  const int64_t memory = system_memory().most;
  if (memory != INT64_MAX) machine["memory_bytes"] = memory;
  return machine;
}

RunRecord::RunRecord(fs::path run, std::string program)
    : run_(std::move(run)), program_(std::move(program)) {}

std::optional<RunRecord> RunRecord::read_if_whole(const fs::path& run) {
  try {
    return read(run);
  } catch (const Error& error) {
    log_warning("{}", error.what());
    return std::nullopt;
  }
}

std::optional<RunRecord> RunRecord::read(const fs::path& run) {
  const fs::path path = run / kRunRecordName;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  RunRecord record(run, "");
  record.before_ = read_small_file(path, kMaxBytes);
  const std::string what = path.string();
  const OrderedJson json = parsed(record.before_, what);
  if (!json.is_object()) fail(ErrorKind::input, "{}: expected a JSON object", what);
  if (json.value("format", OrderedJson()) != kFormat) {
    fail(ErrorKind::input, "{}: format {}, this program reads {}", what,
         json.value("format", OrderedJson()).dump(), kFormat);
  }
  record.program_ = field(json, "program", "", what).get<std::string>();
  record.options_ = field(json, "options", OrderedJson::object(), what);
  record.description_ = {.config = field(json, "config", OrderedJson::object(), what),
                         .recipe = field(json, "recipe", OrderedJson::object(), what),
                         .data = field(json, "data", OrderedJson::array(), what)};
  record.sessions_ = field(json, "sessions", OrderedJson::array(), what);
  const OrderedJson best = field(json, "best", OrderedJson::object(), what);
  if (!best.empty()) {
    const OrderedJson step = best.value("step", OrderedJson()),
                      loss = best.value("validation_loss", OrderedJson());
    if (!step.is_number_integer() || step < 0 || !loss.is_number()) {
      fail(ErrorKind::input, "{}: \"best\" must have a step and a validation_loss", what);
    }
    record.best_ = Best{.step = step.get<int64_t>(), .loss = loss.get<double>()};
  }
  for (const OrderedJson& session : record.sessions_) {
    if (!session.is_object()) fail(ErrorKind::input, "{}: a session must be an object", what);
  }
  return record;
}

OrderedJson RunRecord::json() const {
  OrderedJson json{{"format", kFormat},
                   {"program", program_},
                   {"options", options_},
                   {"recipe", description_.recipe},
                   {"data", description_.data}};
  if (best_) json["best"] = {{"step", best_->step}, {"validation_loss", best_->loss}};
  json["sessions"] = sessions_;
  json["config"] = description_.config;
  return json;
}

void RunRecord::begin(const SessionFacts& facts, OrderedJson options) {
  options_ = std::move(options);
  for (OrderedJson& before : sessions_) {
    if (before.value("end", OrderedJson()) == kGoingOn) before["end"] = "killed";
  }
  std::error_code ignored;
  OrderedJson command = OrderedJson::array();
  for (const std::string& word : facts.command) command.push_back(readable(word));
  OrderedJson session{{"began", utc_now()},
                      {"ended", nullptr},
                      {"end", kGoingOn},
                      {"command", std::move(command)},
                      {"folder", readable(fs::current_path(ignored).string())},
                      {"version", facts.version},
                      {"commit", facts.commit},
                      {"engine_version", kEngineVersion},
                      {"machine", facts.machine}};
  if (!facts.changed.empty()) session["changed"] = facts.changed;
  sessions_.push_back(std::move(session));
  write();
}

void RunRecord::describe(Description description) {
  description_ = std::move(description);
  write();
}

void RunRecord::set_best(const BestValidation& best) {
  best_ = Best{.step = best.step, .loss = best.loss.value_or(0)};
  write();
}

void RunRecord::start(int64_t steps_done) {
  if (best_ && best_->step > steps_done) best_.reset();
  sessions_.back()["first_step"] = steps_done + 1;
  write();
}

void RunRecord::end(int64_t steps_done, std::string_view how) {
  OrderedJson& session = sessions_.back();
  session["ended"] = utc_now();
  session["end"] = how;
  session["last_step"] = steps_done;
  write();
}

void RunRecord::take_back() noexcept {
  try {
    if (!before_.empty()) return atomic_write_file(run_ / kRunRecordName, before_);
    std::error_code ignored;
    fs::remove(run_ / kRunRecordName, ignored);
  } catch (...) {  // the error that led here is the one to be told
  }
}

void RunRecord::write() const {
  atomic_write_file(run_ / kRunRecordName,
                    json().dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

}  // namespace dsmoe::train

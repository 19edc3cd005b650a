// One atomic level; one write(2) per line, or a queue with a thread.
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "base/background_writer.h"
#include "base/error.h"
#include "base/muted_log.h"

namespace dsmoe {
namespace {

LogLevel level_from_environment() {
  const char* word = std::getenv("DSMOE_LOG");
  if (word == nullptr || *word == '\0') return LogLevel::info;
  try {
    return parse_log_level(word, "DSMOE_LOG");
  } catch (const Error& e) {
    detail::write_log(LogLevel::warning,
                      e.what());  // a bad setting of the log must not stop the work
    return LogLevel::info;
  }
}

std::atomic<LogLevel>& level() {
  static std::atomic<LogLevel> value{level_from_environment()};
  return value;
}

thread_local int num_mutes = 0;

// Never destroyed: threads may log until the process ends.
std::atomic<BackgroundWriter*> background{nullptr};

}  // namespace

LogLevel log_level() { return level().load(std::memory_order_relaxed); }
void set_log_level(LogLevel value) { level().store(value, std::memory_order_relaxed); }

LogLevel parse_log_level(std::string_view word, std::string_view what) {
  if (word == "quiet") return LogLevel::quiet;
  if (word == "warning") return LogLevel::warning;
  if (word == "info") return LogLevel::info;
  if (word == "debug") return LogLevel::debug;
  fail(ErrorKind::usage, "{} must be quiet, warning, info or debug, not \"{}\"", what, word);
}

std::string format_log_line(LogLevel line_level, std::string_view text, bool to_terminal) {
  const char* clear = to_terminal ? "\r\033[K" : "";
  const char* prefix = line_level == LogLevel::warning ? "warning: "
                       : line_level == LogLevel::debug ? "debug: "
                                                       : "";
  return fmt::format("{}dsmoe: {}{}\n", clear, prefix, text);
}

void log_in_background() {
  background = new BackgroundWriter(STDERR_FILENO, [](uint64_t lost) {
    return format_log_line(LogLevel::warning, fmt::format("{} lines of this log were lost", lost),
                           isatty(STDERR_FILENO) != 0);
  });
}

void write_message(std::string_view text) {
  if (BackgroundWriter* writer = background) return writer->write(text);
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // stderr is gone; there is nobody to tell
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void flush_log() {
  if (BackgroundWriter* writer = background) writer->flush();
}

MutedLog::MutedLog() { ++num_mutes; }
MutedLog::~MutedLog() { --num_mutes; }

namespace detail {

void write_log(LogLevel line_level, std::string_view text) {
  if (num_mutes > 0) return;
  write_message(format_log_line(line_level, text, isatty(STDERR_FILENO) != 0));
}

}  // namespace detail
}  // namespace dsmoe

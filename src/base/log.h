// Lines for people on stderr, at or above one level for the whole process. Results go to stdout,
// not here.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace dsmoe {

enum class LogLevel { quiet, warning, info, debug };  // each shows itself and those before it

// Starts as the environment variable DSMOE_LOG says (quiet, warning, info, debug), info without it.
LogLevel log_level();
void set_log_level(LogLevel level);  // --quiet sets quiet

// Throws Error(usage) on any other word; `what` names where it came from.
LogLevel parse_log_level(std::string_view word, std::string_view what);

// What a message looks like: "dsmoe: text\n" or "dsmoe: warning: text\n", after an escape that
// clears a progress bar when stderr is a terminal.
std::string format_log_line(LogLevel level, std::string_view text, bool to_terminal);

// From now on a thread of its own writes to stderr. For servers: whoever reads their log may stop
// or leave; they go on, drop what finds no room, and say how many lines those were. SIGPIPE has to
// be ignored.
void log_in_background();
// Bytes for stderr as they are, in turn with the lines.
void write_message(std::string_view text);
// Before the process ends: what was said is written, or a second is over.
void flush_log();

namespace detail {
void write_log(LogLevel level, std::string_view text);
}  // namespace detail

// The arguments are formatted only when the level is shown. Lines never mix: each is one write, or
// has its place in the background's queue.
template <class... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  if (log_level() >= LogLevel::warning) {
    detail::write_log(LogLevel::warning, fmt::format(text, std::forward<Args>(args)...));
  }
}
template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  if (log_level() >= LogLevel::info) {
    detail::write_log(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
  }
}
template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  if (log_level() >= LogLevel::debug) {
    detail::write_log(LogLevel::debug, fmt::format(text, std::forward<Args>(args)...));
  }
}

}  // namespace dsmoe

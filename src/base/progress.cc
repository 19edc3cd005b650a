// Text of the bar and of the plain lines, and when to show them.
#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/log.h"
#include "base/readable.h"

namespace dsmoe {
namespace {

constexpr double kBarSeconds = 0.1, kLineSeconds = 10.0;
constexpr int kBarWidths[] = {24, 12};  // the widest that leaves room for the text

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressStyle choose_style() {
  if (log_level() == LogLevel::quiet) return ProgressStyle::none;
  return isatty(STDERR_FILENO) != 0 ? ProgressStyle::bar : ProgressStyle::lines;
}

int terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Rates over many orders of magnitude: 0.0123, 1.23, 12.3, 1234.
std::string format_rate(double rate) {
  if (rate >= 1e5) return human_number(rate);
  if (rate >= 100) return fmt::format("{:.0f}", rate);
  return fmt::format("{:#.3g}", rate);
}

// At most `columns` bytes: a line that wraps could not be redrawn. What follows the last comma goes
// first, since half a figure is another figure; never half of a UTF-8 character stays.
void truncate_line(std::string& line, size_t columns) {
  for (size_t comma; line.size() > columns; line.resize(comma)) {
    comma = line.rfind(", ");
    if (comma == std::string::npos) break;
  }
  size_t size = columns;
  if (line.size() <= size) return;
  while (size > 0 && (static_cast<unsigned char>(line[size]) & 0xc0) == 0x80) --size;
  line.resize(size);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 3.6e9) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)), rate_(0, 0) {
  if (options_.style == ProgressStyle::automatic) options_.style = choose_style();
  if (!options_.write) options_.write = write_message;
  if (!options_.now) options_.now = steady_seconds;
  done_ = options_.already_done;
  start_ = options_.now();
  rate_ = RecentRate(start_, static_cast<double>(done_));
  last_shown_ = options_.style == ProgressStyle::bar ? -HUGE_VAL : start_;
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a display is not worth ending the program for
  }
}

void Progress::update(int64_t done, std::string_view note) {
  if (finished_ || options_.style == ProgressStyle::none) return;
  done_ = done;
  note_ = note;
  const double now = options_.now();
  rate_.add(now, static_cast<double>(done));
  const double pause = options_.style == ProgressStyle::bar ? kBarSeconds : kLineSeconds;
  if (now - last_shown_ < pause) return;
  show(now);
}

void Progress::finish() {
  if (finished_ || options_.style == ProgressStyle::none) return;
  finished_ = true;
  show(options_.now());
  if (options_.style == ProgressStyle::bar) options_.write("\n");
}

void Progress::show(double now) {
  last_shown_ = now;
  if (options_.style == ProgressStyle::bar) {
    options_.write(fmt::format("\r{}\033[K", bar_line(now)));
  } else {
    options_.write(fmt::format("{}: {}\n", options_.label, text(now)));
  }
}

// "450/1000 steps, 12.3/s, 0:45 left, loss 3.21"; at the end "in 1:21" in place of the time left.
std::string Progress::text(double now) const {
  std::string out =
      options_.total > 0 ? fmt::format("{}/{}", done_, options_.total) : fmt::format("{}", done_);
  if (!options_.unit.empty()) out += fmt::format(" {}", options_.unit);
  const double elapsed = now - start_;
  // At the end the rate is that of the whole job.
  const double whole =
      elapsed > 0 ? static_cast<double>(done_ - options_.already_done) / elapsed : 0;
  const double rate = finished_ ? whole : rate_.rate();
  if (rate > 0) out += fmt::format(", {}/s", format_rate(rate));
  if (finished_) {
    out += fmt::format(", in {}", format_duration(elapsed));
  } else if (rate > 0 && options_.total > done_) {
    out += fmt::format(", {} left",
                       format_duration(static_cast<double>(options_.total - done_) / rate));
  }
  if (!note_.empty()) out += fmt::format(", {}", note_);
  return out;
}

// "train [=========>              ]  41% 450/1000 steps, ..."
std::string Progress::bar_line(double now) const {
  // One column stays free: some terminals wrap when the last is written.
  const int terminal = options_.columns > 0 ? options_.columns : terminal_columns();
  const size_t columns = static_cast<size_t>(std::max(terminal - 1, 1));
  const std::string figures = text(now);
  for (const int width : kBarWidths) {
    if (options_.total <= 0) break;
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(options_.total), 0.0, 1.0);
    const int filled = static_cast<int>(share * width);
    std::string bar(width, ' ');
    std::fill_n(bar.begin(), filled, '=');
    if (filled < width) bar[filled] = '>';
    std::string line = fmt::format("{} [{}] {:3}% {}", options_.label, bar,
                                   static_cast<int>(share * 100), figures);
    if (line.size() <= columns) return line;
  }
  std::string line = fmt::format("{} {}", options_.label, figures);
  truncate_line(line, columns);
  return line;
}

}  // namespace dsmoe

// How far a long job is: a bar on a terminal, plain lines elsewhere, with rate and time left, both
// by the last half minute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/recent_rate.h"

namespace dsmoe {

enum class ProgressStyle {
  automatic,  // none when the log is quiet, else bar on a terminal, else lines
  bar,        // one line, redrawn at most ten times a second
  lines,      // a line at most every ten seconds, and one at the end
  none,
};

struct ProgressOptions {
  std::string label;         // "train"
  int64_t total = 0;         // 0: not known, so no bar and no time left
  int64_t already_done = 0;  // a resumed job starts here; the rate counts from here
  std::string unit;          // "steps"
  ProgressStyle style = ProgressStyle::automatic;
  // For tests; by default stderr, the steady clock in seconds, and the terminal's width.
  std::function<void(std::string_view)> write = {};
  std::function<double()> now = {};
  int columns = 0;
};

// One thread reports to it. The destructor finishes the display as far as the job came.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `note` follows the figures: "loss 3.21".
  void update(int64_t done, std::string_view note = {});
  // The last state is shown for good. Further calls do nothing.
  void finish();

 private:
  void show(double now);
  std::string text(double now) const;
  std::string bar_line(double now) const;

  ProgressOptions options_;
  int64_t done_;
  std::string note_;
  double start_, last_shown_;
  RecentRate rate_;
  bool finished_ = false;
};

// "0:07", "12:03", "3:04:05".
std::string format_duration(double seconds);

}  // namespace dsmoe

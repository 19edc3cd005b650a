// One render's budget and position: every helper charges its work here and fails here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/jinja/jinja_text.h"

namespace dsmoe::text::jinja {

struct Position {
  int line = 1;
  int column = 1;  // in code points
};

struct Limits {
  // One step is 20 to 100 ns: the evaluation of a node, a list element made, or 64 bytes of text
  // copied.
  std::int64_t max_steps = 500'000;
  // Added per unit of input (a JSON value, or 64 bytes of its text), so that a long conversation
  // may use more.
  std::int64_t steps_per_input_unit = 100;
  std::int64_t max_output_bytes = std::int64_t{64} << 20;
  int max_depth = 500;  // nested evaluations: expressions, statements, macro calls
  // What strftime_now says; none: there is no such function.
  std::optional<std::chrono::year_month_day> today = {};
};

[[noreturn]] inline void fail_at(std::string_view what, Position at, const std::string& message) {
  dsmoe::fail(ErrorKind::input, "{}: line {}, column {}: {}", what, at.line, at.column, message);
}

class Run {
 public:
  Run(std::string_view what, const Limits& limits)
      : limits_(limits), what_(what), steps_left_(limits.max_steps) {}

  Position at;  // of the node in work

  const Limits& limits() const { return limits_; }
  std::int64_t steps_left() const { return steps_left_; }
  void grant(std::int64_t steps) { steps_left_ += steps; }

  void step(std::int64_t steps = 1) {
    if (steps > steps_left_) [[unlikely]] {
      steps_left_ = 0;
      fail("the template takes too long: more than {} steps", limits_.max_steps);
    }
    steps_left_ -= steps;
  }
  // For text made or walked through; call it before allocating.
  void bytes(std::size_t count) { step(1 + static_cast<std::int64_t>(count / 64)); }
  // For a search: the worst case compares the whole needle at every position.
  void search(std::size_t text, std::size_t needle) {
    bytes(text);
    step(static_cast<std::int64_t>((text / 64) * (needle / 16)));
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    fail_at(what_, at, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  Limits limits_;
  std::string what_;
  std::int64_t steps_left_;
};

}  // namespace dsmoe::text::jinja

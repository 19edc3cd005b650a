// Reads lines from a person: editing and history on a terminal, plain lines elsewhere.
#pragma once

#include <termios.h>

#include <deque>
#include <string>
#include <string_view>

#include "terminal/line_buffer.h"

namespace dsmoe::app {

// While one exists on a terminal, what is typed between two lines does not appear among the
// program's output; it waits, ctrl-d included, for the next line.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool is_terminal() const { return is_terminal_; }

  struct Result {
    LineState state = LineState::closed;  // done, interrupted (ctrl-c) or closed (end of input)
    std::string text = {};
  };
  Result read(const std::string& prompt);

 private:
  Result read_plain();
  Result edit(const std::string& prompt);
  bool wait_for_keys();
  void draw(const std::string& prompt) const;
  void leave(const std::string& prompt, std::string_view mark) const;

  bool is_terminal_;
  termios saved_{};  // the terminal's settings before
  LineBuffer buffer_;
  KeyParser parser_;
  std::deque<Keystroke> queue_;
  std::string plain_;  // bytes read ahead
};

}  // namespace dsmoe::app

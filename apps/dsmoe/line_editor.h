// Reads lines from a person: editing and history on a terminal, plain lines elsewhere.
#pragma once

#include <termios.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "line_buffer.h"

namespace dsmoe::app {

// While one exists, what is typed does not appear among the answer; it waits for the next line.
class EchoOff {
 public:
  EchoOff();
  ~EchoOff();
  EchoOff(const EchoOff&) = delete;
  EchoOff& operator=(const EchoOff&) = delete;

 private:
  std::optional<termios> saved_;  // absent: stdin is no terminal
};

class LineEditor {
 public:
  LineEditor();

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
  LineBuffer buffer_;
  KeyParser parser_;
  std::deque<Keystroke> queue_;
  std::string plain_;  // bytes read ahead
};

}  // namespace dsmoe::app

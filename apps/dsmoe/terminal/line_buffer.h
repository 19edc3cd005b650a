// The line being typed: text, cursor, history; no terminal.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::app {

enum class Key {
  character,  // Keystroke::text
  enter,
  backspace,
  remove,  // the character under the cursor
  left,
  right,
  word_left,
  word_right,
  home,
  end,
  up,
  down,
  clear_before,  // ctrl-u
  clear_after,   // ctrl-k
  clear_word,    // ctrl-w
  redraw,        // ctrl-l
  interrupt,     // ctrl-c
  end_of_input,  // ctrl-d
  none,          // an escape sequence this program does not know
};

struct Keystroke {
  Key key = Key::none;
  std::string text = {};  // one UTF-8 character, or a paste
};

enum class LineState { editing, done, interrupted, closed };

class LineBuffer {
 public:
  LineState apply(const Keystroke& keystroke);

  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // a byte, never inside a character

  // Ends this line: it joins the history unless empty or equal to the last. Starts an empty one.
  std::string take();
  void discard();

 private:
  void show_history(std::size_t idx);
  std::size_t before(std::size_t at) const;
  std::size_t after(std::size_t at) const;
  std::size_t word_before(std::size_t at) const;
  std::size_t word_after(std::size_t at) const;
  void erase(std::size_t begin, std::size_t end);

  std::string text_;
  std::size_t cursor_ = 0;
  std::vector<std::string> history_;
  std::size_t history_idx_ = 0;  // history_.size(): the line being typed
  std::string typed_;            // it, while an older one is shown
};

// Bytes of a terminal -> keystrokes. Feed bytes as they come.
class KeyParser {
 public:
  // Appends what `byte` completes.
  void push(unsigned char byte, std::deque<Keystroke>& out);
  // Nothing more came for a while: a lone escape is dropped.
  void timeout();
  bool is_waiting() const { return !pending_.empty(); }

 private:
  void push_plain(unsigned char byte, std::deque<Keystroke>& out);
  void finish_escape(std::deque<Keystroke>& out);

  std::string pending_;  // an unfinished escape sequence or UTF-8 character
  bool in_paste_ = false;
  std::string paste_;
};

}  // namespace dsmoe::app

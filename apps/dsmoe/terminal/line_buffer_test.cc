// Editing keys, history and the bytes terminals send.
#include "terminal/line_buffer.h"

#include <gtest/gtest.h>

namespace dsmoe::app {
namespace {

// Types the bytes and returns the line with "|" at the cursor.
class Typist {
 public:
  LineState type(std::string_view bytes) {
    std::deque<Keystroke> keys;
    for (const char byte : bytes) parser_.push(static_cast<unsigned char>(byte), keys);
    LineState state = LineState::editing;
    for (const Keystroke& key : keys) state = buffer.apply(key);
    return state;
  }
  std::string after(std::string_view bytes) {
    buffer.discard();
    EXPECT_EQ(type(bytes), LineState::editing);
    std::string text = buffer.text();
    return text.insert(buffer.cursor(), "|");
  }
  LineBuffer buffer;

 private:
  KeyParser parser_;
};

TEST(LineBuffer, EditsAtTheCursor) {
  Typist typist;
  EXPECT_EQ(typist.after("abc"), "abc|");
  EXPECT_EQ(typist.after("abc\x1b[D\x1b[DX"), "aX|bc");
  EXPECT_EQ(typist.after("abc\x7f\b"), "a|");
  EXPECT_EQ(typist.after("abc\x01\x1b[3~"), "|bc");
  EXPECT_EQ(typist.after("abc\x01\x05"), "abc|");
  EXPECT_EQ(typist.after("one two\x17"), "one |");
  EXPECT_EQ(typist.after("one two\x1b"
                         "b\x0b"),
            "one |");
  EXPECT_EQ(typist.after("one two\x1b[1;5D\x15"), "|two");
  EXPECT_EQ(typist.after("ab\x1bOD\x1bOC!"), "ab!|");
  EXPECT_EQ(typist.after("ab\x02\x04"), "a|");  // ctrl-d in a line deletes
}

TEST(LineBuffer, MovesByWholeCharacters) {
  Typist typist;
  EXPECT_EQ(typist.after("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7f\x7f"), "a\xC3\xA9|");
  EXPECT_EQ(typist.after("\xC3\xA9x\x1b[D\x1b[Dy"), "y|\xC3\xA9x");
  EXPECT_EQ(typist.after("\xC3"
                         "a\xA9"
                         "b"),
            "ab|");  // broken UTF-8 is dropped
}

TEST(LineBuffer, EndsOnEnterInterruptAndEndOfInput) {
  Typist typist;
  EXPECT_EQ(typist.type("hi\r"), LineState::done);
  EXPECT_EQ(typist.buffer.take(), "hi");
  EXPECT_EQ(typist.buffer.text(), "");
  EXPECT_EQ(typist.type("hi\x03"), LineState::interrupted);
  typist.buffer.discard();
  EXPECT_EQ(typist.type("\x04"), LineState::closed);
}

TEST(LineBuffer, RecallsHistoryAndTheLineBegun) {
  Typist typist;
  for (const char* line : {"one\r", "two\r", "two\r", "\r"}) {
    EXPECT_EQ(typist.type(line), LineState::done);
    typist.buffer.take();
  }
  typist.type("begun\x1b[A");
  EXPECT_EQ(typist.buffer.text(), "two");
  typist.type("\x1b[A\x1b[A");
  EXPECT_EQ(typist.buffer.text(), "one");
  typist.type("\x1b[B\x1b[B\x1b[B");
  EXPECT_EQ(typist.buffer.text(), "begun");
}

TEST(LineBuffer, PastesKeepTheirNewlines) {
  Typist typist;
  EXPECT_EQ(typist.after("a\x1b[200~x\ry\x1b[D\x1b[201~b"), "ax\ny\x1b[Db|");
}

TEST(LineBuffer, IgnoresUnknownSequences) {
  Typist typist;
  EXPECT_EQ(typist.after("a\x1b[15~\x1b[1;9Zb\x1bxc"), "abc|");
}

}  // namespace
}  // namespace dsmoe::app

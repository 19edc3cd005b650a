// Raw mode while a line is typed, and only then, so that ctrl-c is a signal while the model
// answers.
#include "terminal/line_editor.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cwchar>

#include "base/error.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

constexpr int kEscapeTimeoutMs = 50;

class RawMode {
 public:
  RawMode() {
    if (::tcgetattr(STDIN_FILENO, &saved_) != 0) fail_errno("cannot read the terminal's settings");
    termios raw = saved_;
    raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_output("\x1b[?2004h");  // pastes come in brackets, so that their newlines do not send
  }
  ~RawMode() {
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
    // A destructor cannot report; the next write to stdout will.
    std::fputs("\x1b[?2004l", stdout);
    std::fflush(stdout);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  termios saved_{};
};

// What the line looks like: a newline of a paste is one visible character.
struct Glyph {
  std::string text;
  int width;
};

std::vector<Glyph> glyphs_of(std::string_view text) {
  std::vector<Glyph> glyphs;
  for (std::size_t i = 0; i < text.size();) {
    wchar_t wide = 0;
    std::mbstate_t state{};
    const std::size_t length = std::mbrtowc(&wide, text.data() + i, text.size() - i, &state);
    if (length == 0 || length > 4) {
      glyphs.push_back({"?", 1});
      ++i;
      continue;
    }
    const int width = ::wcwidth(wide);
    if (wide == L'\n') {
      glyphs.push_back({"\xE2\x86\xB5", 1});  // ↵
    } else {
      glyphs.push_back(
          {width < 0 ? "?" : std::string(text.substr(i, length)), width < 0 ? 1 : width});
    }
    i += length;
  }
  return glyphs;
}

int width_of(const std::vector<Glyph>& glyphs) {
  int width = 0;
  for (const Glyph& glyph : glyphs) width += glyph.width;
  return width;
}

}  // namespace

LineEditor::LineEditor()
    : is_terminal_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
  if (!is_terminal_) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");  // for the width of characters
  if (::tcgetattr(STDIN_FILENO, &saved_) != 0) fail_errno("cannot read the terminal's settings");
  termios quiet = saved_;
  quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  quiet.c_cc[VEOF] = _POSIX_VDISABLE;  // else the terminal keeps a ctrl-d typed ahead as a zero
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

LineEditor::~LineEditor() {
  if (is_terminal_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
}

LineEditor::Result LineEditor::read(const std::string& prompt) {
  return is_terminal_ ? edit(prompt) : read_plain();
}

LineEditor::Result LineEditor::read_plain() {
  for (;;) {
    if (const std::size_t end = plain_.find('\n'); end != std::string::npos) {
      std::string line = plain_.substr(0, end);
      plain_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return {LineState::done, line};
    }
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, -1) < 0 && errno == EINTR) {  // a read would go on after a signal
      if (InterruptScope::flag()) return {LineState::interrupted};
      continue;
    }
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0) fail_errno("cannot read standard input");
    if (count == 0) {
      if (plain_.empty()) return {LineState::closed};
      return {LineState::done, std::exchange(plain_, {})};
    }
    plain_.append(bytes, static_cast<std::size_t>(count));
  }
}

// One row of the terminal; a longer line scrolls sideways under the cursor.
void LineEditor::draw(const std::string& prompt) const {
  const std::string_view text = buffer_.text();
  const std::vector<Glyph> left = glyphs_of(text.substr(0, buffer_.cursor()));
  const std::vector<Glyph> right = glyphs_of(text.substr(buffer_.cursor()));
  const int prompt_width = width_of(glyphs_of(prompt));
  const int room = std::max(terminal_columns() - prompt_width - 1, 8);
  std::size_t first = 0;
  int left_width = width_of(left);
  while (left_width > room) left_width -= left[first++].width;
  std::string row = "\r" + prompt;
  for (std::size_t i = first; i < left.size(); ++i) row += left[i].text;
  int used = left_width;
  for (const Glyph& glyph : right) {
    if (used + glyph.width > room) break;
    used += glyph.width;
    row += glyph.text;
  }
  write_output(fmt::format("{}\x1b[K\r\x1b[{}C", row, prompt_width + left_width));
  flush_output();
}

// The line as it was sent stays on the screen whole, over as many rows as it takes.
void LineEditor::leave(const std::string& prompt, std::string_view mark) const {
  std::string row = "\r" + prompt;
  for (const Glyph& glyph : glyphs_of(buffer_.text())) row += glyph.text;
  write_output(fmt::format("{}{}\x1b[K\n", row, mark));
  flush_output();
}

// Keys typed ahead wait in queue_ for the next line.
LineEditor::Result LineEditor::edit(const std::string& prompt) {
  const RawMode raw;
  for (;;) {
    while (!queue_.empty()) {
      const Keystroke keystroke = std::move(queue_.front());
      queue_.pop_front();
      if (keystroke.key == Key::redraw) write_output("\x1b[H\x1b[2J");
      const LineState state = buffer_.apply(keystroke);
      if (state == LineState::editing) continue;
      leave(prompt, state == LineState::interrupted ? "^C" : "");
      if (state == LineState::done) return {state, buffer_.take()};
      buffer_.discard();
      return {state};
    }
    draw(prompt);
    if (!wait_for_keys()) return {LineState::closed};
  }
}

// False at the end of input or on a signal to stop.
bool LineEditor::wait_for_keys() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&input, 1, parser_.is_waiting() ? kEscapeTimeoutMs : -1);
  if (ready < 0) return errno == EINTR && !InterruptScope::flag();  // the window was resized
  if (ready == 0) {
    parser_.timeout();
    return true;
  }
  unsigned char bytes[256];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (count <= 0) return false;
  for (ssize_t i = 0; i < count; ++i) parser_.push(bytes[i], queue_);
  return true;
}

}  // namespace dsmoe::app

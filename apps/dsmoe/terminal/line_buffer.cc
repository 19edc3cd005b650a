// Editing of one line, and the parsing of keys.
#include "terminal/line_buffer.h"

#include <utility>

namespace dsmoe::app {
namespace {

constexpr std::size_t kMaxHistory = 1000;
constexpr std::string_view kPasteEnd = "\x1b[201~";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::size_t character_length(unsigned char lead) {
  if (lead >= 0xF0) return 4;
  if (lead >= 0xE0) return 3;
  return lead >= 0xC0 ? 2 : 1;
}

}  // namespace

std::size_t LineBuffer::before(std::size_t at) const {
  if (at == 0) return 0;
  do {
    --at;
  } while (at > 0 && is_continuation(text_[at]));
  return at;
}

std::size_t LineBuffer::after(std::size_t at) const {
  if (at >= text_.size()) return text_.size();
  do {
    ++at;
  } while (at < text_.size() && is_continuation(text_[at]));
  return at;
}

std::size_t LineBuffer::word_before(std::size_t at) const {
  while (at > 0 && text_[at - 1] == ' ') --at;
  while (at > 0 && text_[at - 1] != ' ') --at;
  return at;
}

std::size_t LineBuffer::word_after(std::size_t at) const {
  while (at < text_.size() && text_[at] == ' ') ++at;
  while (at < text_.size() && text_[at] != ' ') ++at;
  return at;
}

void LineBuffer::erase(std::size_t begin, std::size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void LineBuffer::show_history(std::size_t idx) {
  if (history_idx_ == history_.size()) typed_ = text_;
  history_idx_ = idx;
  text_ = idx == history_.size() ? typed_ : history_[idx];
  cursor_ = text_.size();
}

LineState LineBuffer::apply(const Keystroke& keystroke) {
  switch (keystroke.key) {
    case Key::character:
      text_.insert(cursor_, keystroke.text);
      cursor_ += keystroke.text.size();
      break;
    case Key::enter:
      return LineState::done;
    case Key::interrupt:
      return LineState::interrupted;
    case Key::end_of_input:
      if (text_.empty()) return LineState::closed;
      erase(cursor_, after(cursor_));
      break;
    case Key::backspace:
      erase(before(cursor_), cursor_);
      break;
    case Key::remove:
      erase(cursor_, after(cursor_));
      break;
    case Key::left:
      cursor_ = before(cursor_);
      break;
    case Key::right:
      cursor_ = after(cursor_);
      break;
    case Key::word_left:
      cursor_ = word_before(cursor_);
      break;
    case Key::word_right:
      cursor_ = word_after(cursor_);
      break;
    case Key::home:
      cursor_ = 0;
      break;
    case Key::end:
      cursor_ = text_.size();
      break;
    case Key::up:
      if (history_idx_ > 0) show_history(history_idx_ - 1);
      break;
    case Key::down:
      if (history_idx_ < history_.size()) show_history(history_idx_ + 1);
      break;
    case Key::clear_before:
      erase(0, cursor_);
      break;
    case Key::clear_after:
      text_.resize(cursor_);
      break;
    case Key::clear_word:
      erase(word_before(cursor_), cursor_);
      break;
    case Key::redraw:
    case Key::none:
      break;
  }
  return LineState::editing;
}

std::string LineBuffer::take() {
  std::string line = std::exchange(text_, {});
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
  if (history_.size() > kMaxHistory) history_.erase(history_.begin());
  discard();
  return line;
}

void LineBuffer::discard() {
  text_.clear();
  typed_.clear();
  cursor_ = 0;
  history_idx_ = history_.size();
}

void KeyParser::push_plain(unsigned char byte, std::deque<Keystroke>& out) {
  switch (byte) {
    case 1:
      return out.push_back({Key::home});
    case 2:
      return out.push_back({Key::left});
    case 3:
      return out.push_back({Key::interrupt});
    case 4:
      return out.push_back({Key::end_of_input});
    case 5:
      return out.push_back({Key::end});
    case 6:
      return out.push_back({Key::right});
    case 8:
    case 127:
      return out.push_back({Key::backspace});
    case '\t':
      return out.push_back({Key::character, " "});
    case '\n':
    case '\r':
      return out.push_back({Key::enter});
    case 11:
      return out.push_back({Key::clear_after});
    case 12:
      return out.push_back({Key::redraw});
    case 14:
      return out.push_back({Key::down});
    case 16:
      return out.push_back({Key::up});
    case 21:
      return out.push_back({Key::clear_before});
    case 23:
      return out.push_back({Key::clear_word});
    default:
      if (byte >= 0x20) out.push_back({Key::character, std::string(1, static_cast<char>(byte))});
  }
}

void KeyParser::push(unsigned char byte, std::deque<Keystroke>& out) {
  if (in_paste_) {
    paste_ += static_cast<char>(byte == '\r' ? '\n' : byte);
    if (paste_.ends_with(kPasteEnd)) {
      paste_.resize(paste_.size() - kPasteEnd.size());
      in_paste_ = false;
      if (!paste_.empty()) out.push_back({Key::character, std::exchange(paste_, {})});
    }
    return;
  }
  if (pending_.empty() && byte != 0x1b && character_length(byte) == 1) {
    if (byte < 0x80) push_plain(byte, out);  // a stray continuation byte is dropped
    return;
  }
  pending_ += static_cast<char>(byte);
  if (pending_[0] == '\x1b') return finish_escape(out);
  if (!is_continuation(static_cast<char>(byte)) && pending_.size() > 1) {
    // The character broke off: forget it and read this byte afresh.
    pending_.clear();
    return push(byte, out);
  }
  if (pending_.size() == character_length(static_cast<unsigned char>(pending_[0]))) {
    out.push_back({Key::character, std::exchange(pending_, {})});
  }
}

// ESC [ parameters final, ESC O final, or ESC and one character (alt).
void KeyParser::finish_escape(std::deque<Keystroke>& out) {
  static const std::pair<std::string_view, Key> kSequences[] = {{"\x1b[A", Key::up},
                                                                {"\x1b[B", Key::down},
                                                                {"\x1b[C", Key::right},
                                                                {"\x1b[D", Key::left},
                                                                {"\x1b[H", Key::home},
                                                                {"\x1b[F", Key::end},
                                                                {"\x1bOA", Key::up},
                                                                {"\x1bOB", Key::down},
                                                                {"\x1bOC", Key::right},
                                                                {"\x1bOD", Key::left},
                                                                {"\x1bOH", Key::home},
                                                                {"\x1bOF", Key::end},
                                                                {"\x1b[1~", Key::home},
                                                                {"\x1b[4~", Key::end},
                                                                {"\x1b[7~", Key::home},
                                                                {"\x1b[8~", Key::end},
                                                                {"\x1b[3~", Key::remove},
                                                                {"\x1b[1;5C", Key::word_right},
                                                                {"\x1b[1;5D", Key::word_left},
                                                                {"\x1b[1;3C", Key::word_right},
                                                                {"\x1b[1;3D", Key::word_left},
                                                                {"\x1b"
                                                                 "b",
                                                                 Key::word_left},
                                                                {"\x1b"
                                                                 "f",
                                                                 Key::word_right}};
  if (pending_.size() < 2) return;
  const char kind = pending_[1];
  if (kind == '[' || kind == 'O') {
    if (pending_.size() < 3) return;
    const auto last = static_cast<unsigned char>(pending_.back());
    const bool is_final = last >= 0x40 && last <= 0x7e;
    if (!is_final && pending_.size() < 16) return;
  }
  const std::string sequence = std::exchange(pending_, {});
  if (sequence == "\x1b[200~") {
    in_paste_ = true;
    paste_.clear();
    return;
  }
  for (const auto& [bytes, key] : kSequences) {
    if (sequence == bytes) return out.push_back({key});
  }
}

void KeyParser::timeout() { pending_.clear(); }

}  // namespace dsmoe::app

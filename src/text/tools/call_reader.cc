// A small state machine per part of a call; what is not yet decided stays in the buffer.
#include "text/tools/call_reader.h"

#include <algorithm>
#include <array>

namespace dsmoe::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::size_t kMaxHead = 512;  // a name and its separators
constexpr std::size_t kMaxTail = 512;  // between arguments and the end of a call

using Kind = CallEvent::Kind;

// The last <...> of a text: what identifies it, whatever words and white space are around.
std::string marker_in(std::string_view text) {
  const std::size_t begin = text.rfind('<');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find('>', begin) + 1 - begin));
}

std::string_view without_space(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

void drop_space(std::string& text) {
  text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
}

// How much of the end of `text` may be the beginning of `marker`.
std::size_t overlap(std::string_view text, std::string_view marker) {
  for (std::size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

// "function<sep>NAME\n```json\n", "NAME<sep>", "functions.NAME:0<sep>" -> NAME
std::string name_in_head(std::string_view head) {
  std::string words;
  for (std::size_t i = 0; i < head.size(); ++i) {
    const bool is_marker = head[i] == '<' && head.find('>', i) != std::string_view::npos;
    if (is_marker) i = head.find('>', i);
    words += is_marker ? ' ' : head[i];
  }
  if (const std::size_t fence = words.find("```"); fence != std::string::npos) words.resize(fence);
  words.resize(words.find_last_not_of(kSpace) + 1);
  std::string name = words.substr(words.find_last_of(kSpace) + 1);
  constexpr std::string_view kPrefix = "functions.";
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  return name.substr(0, name.find(':'));
}

}  // namespace

CallReader::CallReader(const CallSyntax& syntax, StringArguments strings)
    : syntax_(syntax),
      strings_(std::move(strings)),
      begin_marker_(syntax.section_begin),
      call_marker_(syntax.call_begin.substr(0, syntax.call_begin.find('>') + 1)),
      end_marker_(marker_in(syntax.call_end)) {}

std::vector<CallEvent> CallReader::push(std::string_view piece) {
  buffer_ += piece;
  Events events;
  while (step(events)) {
  }
  return events;
}

std::vector<CallEvent> CallReader::finish() {
  Events events;
  if (state_ == State::text) {
    const bool is_space = buffer_.find_first_not_of(kSpace) == std::string::npos;
    if (!buffer_.empty() && !(is_space && num_calls_ > 0)) {
      events.push_back({Kind::text, std::move(buffer_)});
    }
  }
  buffer_.clear();
  return events;
}

bool CallReader::step(Events& events) {
  switch (state_) {
    case State::text:
      return read_text(events);
    case State::head:
      return read_head(events);
    case State::object:
      return read_object(events);
    case State::arguments:
      return read_arguments(events);
    case State::tail:
      if (!read_tail()) return false;
      end_call(events);
      return true;
    case State::key_value:
      return read_key_value(events);
  }
  return false;
}

bool CallReader::read_text(Events& events) {
  const std::array<std::string_view, 3> markers{begin_marker_, call_marker_, syntax_.section_end};
  std::size_t at = std::string::npos;
  std::string_view found;
  std::size_t held = 0;
  for (const std::string_view marker : markers) {
    if (marker.empty()) continue;
    const std::size_t hit = buffer_.find(marker);
    if (hit < at) {
      at = hit;
      found = marker;
    }
    held = std::max(held, overlap(buffer_, marker));
  }
  const bool is_found = at != std::string::npos;
  std::string text = buffer_.substr(0, is_found ? at : buffer_.size() - held);
  // White space waits: a marker may follow it.
  const std::size_t said = text.find_last_not_of(kSpace);
  text.resize(said == std::string::npos ? 0 : said + 1);
  // Between calls there is only white space.
  if (!text.empty()) {
    buffer_.erase(0, text.size());
    if (is_found) at -= text.size();
    events.push_back({Kind::text, std::move(text)});
  }
  if (!is_found) return false;
  buffer_.erase(0, at + found.size());
  if (found == call_marker_) state_ = State::head;
  return true;
}

bool CallReader::read_head(Events& events) {
  has_begun_ = false;
  name_.clear();
  late_arguments_.clear();
  key_.clear();
  span_ = {};
  if (syntax_.body == CallBody::object) {
    drop_space(buffer_);
    if (buffer_.empty()) return false;
    if (buffer_[0] == '{') {
      buffer_.erase(0, 1);
      state_ = State::object;
      return true;
    }
  } else if (syntax_.body == CallBody::named) {
    const std::size_t brace = buffer_.find('{');
    if (brace != std::string::npos && brace < buffer_.find(end_marker_)) {
      begin_call(events, name_in_head(std::string_view(buffer_).substr(0, brace)));
      buffer_.erase(0, brace);
      state_ = State::arguments;
      return true;
    }
    if (buffer_.size() < kMaxHead && buffer_.find(end_marker_) == std::string::npos) return false;
  } else {
    drop_space(buffer_);
    const std::string_view name_begin = without_space(syntax_.name_begin);
    if (buffer_.size() < name_begin.size() && name_begin.starts_with(buffer_)) return false;
    const bool has_begin = buffer_.starts_with(name_begin);
    if (has_begin) buffer_.erase(0, name_begin.size());
    const std::size_t end = buffer_.find_first_of("\n<>");
    if (has_begin && end != std::string::npos && end > 0) {
      std::string name = buffer_.substr(0, end);
      name.resize(name.find_last_not_of(kSpace) + 1);
      begin_call(events, std::move(name));
      buffer_.erase(0, end);
      is_first_pair_ = true;
      state_ = State::key_value;
      return true;
    }
    if (has_begin && end == std::string::npos && buffer_.size() < kMaxHead) {
      buffer_.insert(0, name_begin);
      return false;
    }
  }
  // No call after all: what looked like one was said.
  events.push_back({Kind::text, call_marker_});
  state_ = State::text;
  return true;
}

// Members in any order; the name is needed before the arguments are told.
bool CallReader::read_object(Events& events) {
  const std::size_t begin = buffer_.find_first_not_of(" \t\r\n,:");
  buffer_.erase(0, std::min(begin, buffer_.size()));
  if (buffer_.empty()) return false;
  if (buffer_[0] == '}' && key_.empty()) {
    buffer_.erase(0, 1);
    state_ = State::tail;
    return true;
  }
  if (key_ == "arguments" && has_begun_) {
    span_ = {};
    state_ = State::arguments;
    return true;
  }
  JsonSpan span;
  const std::size_t size = span.take(buffer_);
  if (!span.is_complete()) return false;
  const std::string value = buffer_.substr(0, std::max<std::size_t>(size, 1));
  buffer_.erase(0, value.size());
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (key_.empty()) {
    if (json.is_string()) key_ = json.get<std::string>();
    return true;
  }
  if (key_ == "arguments") late_arguments_ = value;
  if (key_ == "name" && json.is_string()) {
    begin_call(events, json.get<std::string>());
    if (!late_arguments_.empty()) events.push_back({Kind::arguments, late_arguments_});
  }
  key_.clear();
  return true;
}

bool CallReader::read_arguments(Events& events) {
  const std::size_t size = span_.take(buffer_);
  if (size > 0) events.push_back({Kind::arguments, buffer_.substr(0, size)});
  buffer_.erase(0, size);
  if (!span_.is_complete()) return false;
  key_.clear();
  state_ = syntax_.body == CallBody::object ? State::object : State::tail;
  return true;
}

bool CallReader::read_tail() {
  const std::size_t end = buffer_.find(end_marker_);
  if (end != std::string::npos) {
    buffer_.erase(0, end + end_marker_.size());
    return true;
  }
  const bool goes_on = buffer_.find(call_marker_) != std::string::npos;
  return goes_on || buffer_.size() > kMaxTail;
}

bool CallReader::read_key_value(Events& events) {
  drop_space(buffer_);
  if (buffer_.starts_with(end_marker_)) {
    events.push_back({Kind::arguments, is_first_pair_ ? "{}" : "}"});
    state_ = State::tail;
    return true;
  }
  if (buffer_.starts_with(syntax_.key_begin)) return read_pair(events);
  const bool may_be_marker = overlap(buffer_, syntax_.key_begin) == buffer_.size() ||
                             overlap(buffer_, end_marker_) == buffer_.size();
  if (may_be_marker) return false;
  buffer_.erase(0, 1);
  return true;
}

// Once its value has ended. Of the white space that belongs to the markers one line break at each
// end of a value is dropped, where the family writes it.
bool CallReader::read_pair(Events& events) {
  const std::string_view key_end = syntax_.key_end.substr(0, syntax_.key_end.find('>') + 1);
  const std::string value_begin = marker_in(syntax_.key_end),
                    value_end(without_space(syntax_.value_end));
  const std::size_t key_stop = buffer_.find(key_end, syntax_.key_begin.size());
  std::size_t from = key_stop;
  if (!value_begin.empty()) from = buffer_.find(value_begin, syntax_.key_begin.size());
  const std::size_t stop = buffer_.find(value_end, std::min(from, buffer_.size()));
  if (stop == std::string::npos) return false;
  const std::string key =
      buffer_.substr(syntax_.key_begin.size(), std::min(key_stop, from) - syntax_.key_begin.size());
  from += value_begin.empty() ? key_end.size() : value_begin.size();
  std::string_view text = std::string_view(buffer_).substr(from, stop - from);
  if (syntax_.key_end.ends_with('\n') && text.starts_with('\n')) text.remove_prefix(1);
  if (syntax_.value_end.starts_with('\n') && text.ends_with('\n')) text.remove_suffix(1);
  events.push_back({Kind::arguments,
                    (is_first_pair_ ? "{" : ", ") + Json(key).dump() + ": " + value_of(key, text)});
  is_first_pair_ = false;
  buffer_.erase(0, stop + value_end.size());
  return true;
}

// Texts are as they are, and everything else is JSON.
std::string CallReader::value_of(const std::string& key, std::string_view text) const {
  const auto tool = strings_.find(name_);
  const bool is_text = tool != strings_.end() && tool->second.contains(key);
  if (!is_text && Json::accept(text)) return std::string(text);
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void CallReader::begin_call(Events& events, std::string name) {
  name_ = name;
  has_begun_ = true;
  ++num_calls_;
  events.push_back({Kind::begin, std::move(name)});
}

void CallReader::end_call(Events& events) {
  if (has_begun_) events.push_back({Kind::end});
  state_ = State::text;
}

}  // namespace dsmoe::text

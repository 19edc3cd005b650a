// Looks for two markers, and holds back what may still become one.
#include "text/reasoning.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dsmoe::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::array kKnown = {ReasoningMarkers{"<think>", "</think>"},
                               ReasoningMarkers{"[THINK]", "[/THINK]"}};

std::string_view trim_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

// How many bytes at the end of `text` white space and the beginning of a marker behind it fill.
std::size_t tail_that_waits(std::string_view text, std::string_view marker) {
  std::size_t marked = 0;
  for (std::size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) {
      marked = n;
      break;
    }
  }
  const std::string_view before = text.substr(0, text.size() - marked);
  const std::size_t last = before.find_last_not_of(kSpace);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

const ReasoningMarkers* find_reasoning(std::string_view template_source) {
  const auto* found = std::ranges::find_if(kKnown, [&](const ReasoningMarkers& markers) {
    return template_source.find(markers.end) != std::string_view::npos;
  });
  return found == kKnown.end() ? nullptr : found;
}

bool opens_reasoning(const ReasoningMarkers& markers, std::string_view prompt) {
  const std::size_t begin = prompt.rfind(markers.begin);
  if (begin == std::string_view::npos) return false;
  return trim_left(prompt.substr(begin + markers.begin.size())).empty();
}

ReasoningReader::ReasoningReader(const ReasoningMarkers& markers, bool is_open)
    : markers_(markers), state_(is_open ? State::reasoning : State::start) {}

SplitAnswer ReasoningReader::push(std::string_view piece) {
  SplitAnswer out;
  held_ += piece;
  read(out);
  return out;
}

void ReasoningReader::read(SplitAnswer& out) {
  if (state_ == State::start) {
    const std::string_view said = trim_left(held_);
    if (markers_.begin.starts_with(said.substr(0, markers_.begin.size()))) {
      if (said.size() < markers_.begin.size()) return;  // not known yet
      held_.erase(0, held_.size() - said.size() + markers_.begin.size());
      state_ = State::reasoning;
    } else {
      state_ = State::text;
    }
  }
  if (state_ == State::reasoning) {
    if (is_blank_) held_.erase(0, held_.size() - trim_left(held_).size());
    const std::size_t end = held_.find(markers_.end);
    if (end == std::string::npos) {
      const std::size_t ready = held_.size() - tail_that_waits(held_, markers_.end);
      out.reasoning.append(held_, 0, ready);
      held_.erase(0, ready);
      is_blank_ = is_blank_ && ready == 0;
      return;
    }
    const std::size_t last = held_.find_last_not_of(kSpace, end == 0 ? end : end - 1);
    if (end > 0 && last != std::string::npos && last < end)
      out.reasoning.append(held_, 0, last + 1);
    held_.erase(0, end + markers_.end.size());
    state_ = State::gap;
  }
  if (state_ == State::gap) {
    held_.erase(0, held_.size() - trim_left(held_).size());
    if (held_.empty()) return;
    state_ = State::text;
  }
  out.text += std::exchange(held_, {});
}

SplitAnswer ReasoningReader::finish() {
  SplitAnswer out;
  (state_ == State::reasoning ? out.reasoning : out.text) = std::exchange(held_, {});
  return out;
}

}  // namespace dsmoe::text

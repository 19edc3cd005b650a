// The part of an answer in which a model thinks, told apart from what it says.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::text {

struct ReasoningMarkers {
  std::string_view begin, end;
};

// Those that stand in the template; null: its model does not think aloud.
const ReasoningMarkers* find_reasoning(std::string_view template_source);

// Whether the answer begins inside such a part: the prompt opened it and did not close it.
bool opens_reasoning(const ReasoningMarkers& markers, std::string_view prompt);

// A piece of an answer: thoughts come before what is said.
struct SplitAnswer {
  std::string reasoning, text;
};

// An answer's text as it comes. White space around the markers belongs to neither part.
class ReasoningReader {
 public:
  // `is_open`: the prompt has opened the part.
  ReasoningReader(const ReasoningMarkers& markers, bool is_open);

  SplitAnswer push(std::string_view piece);
  // The answer has ended: what was held back.
  SplitAnswer finish();

  bool is_thinking() const { return state_ == State::reasoning; }

 private:
  enum class State { start, reasoning, gap, text };
  void read(SplitAnswer& out);

  const ReasoningMarkers& markers_;
  State state_;
  std::string held_;      // may become a marker, or is white space before one
  bool is_blank_ = true;  // nothing of the part was given out yet
};

}  // namespace dsmoe::text

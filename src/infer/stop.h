// Stop strings in a stream of text: the answer ends before them, and no part of one is ever shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::infer {

// The answer ends where a stop string is first complete, whatever the pieces the text came in.
class StopStrings {
 public:
  // None may be empty (Error(input)).
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece and returns what is safe to show: all that cannot become part of a stop
  // string. Nothing once stopped.
  std::string push(std::string_view piece);
  // The text has ended: returns what was held back.
  std::string finish();

  // The stop string that was found; empty: none yet.
  const std::string& found() const { return found_; }
  bool stopped() const { return !found_.empty(); }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the longest end of the text that begins a stop string
  std::string found_;
};

}  // namespace dsmoe::infer

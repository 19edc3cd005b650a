// Stop strings in a stream of text: the answer ends before them, and no part of one is ever shown.
#pragma once

#include <cstddef>
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
  // A search for one string that never looks at a byte of the text twice (Knuth, Morris, Pratt).
  struct Search {
    std::string stop;
    std::vector<std::size_t> border;  // [i]: the longest beginning that ends the first i bytes
    std::size_t matched = 0;          // the longest beginning that ends the text so far
    void take(char byte);
  };
  std::vector<Search> searches_;
  std::string held_;  // the longest end of the text that begins a stop string
  std::string found_;
};

}  // namespace dsmoe::infer

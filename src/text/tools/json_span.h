// Where one JSON value ends in a text that comes piece by piece.
#pragma once

#include <cstddef>
#include <string_view>

namespace dsmoe::text {

// Counts brackets outside of strings; what is between them may be anything.
class JsonSpan {
 public:
  // How many bytes of `text`, which goes on where the last one ended, belong to the value.
  std::size_t take(std::string_view text);
  bool is_complete() const { return is_complete_; }

 private:
  bool has_begun_ = false;
  bool in_string_ = false, is_escaped_ = false;
  bool is_complete_ = false;
  int depth_ = 0;
};

}  // namespace dsmoe::text

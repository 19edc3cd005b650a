// One byte after the other.
#include "text/tools/json_span.h"

namespace dsmoe::text {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

std::size_t JsonSpan::take(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_complete_) return i;
    if (in_string_) {
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        is_complete_ = depth_ == 0;
      }
      continue;
    }
    if (c == '"') {
      in_string_ = has_begun_ = true;
    } else if (c == '{' || c == '[') {
      has_begun_ = true;
      ++depth_;
    } else if (depth_ > 0) {
      if (c == '}' || c == ']') is_complete_ = --depth_ == 0;
    } else if (is_space(c) || c == ',' || c == '}' || c == ']') {
      // A number or a word ends before what cannot belong to it.
      if (has_begun_ || !is_space(c)) {
        is_complete_ = true;
        return i;
      }
    } else {
      has_begun_ = true;
    }
  }
  return text.size();
}

}  // namespace dsmoe::text

// An answer's text, as it comes -> what is said, and the calls of tools in it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tools/call_syntax.h"
#include "text/tools/json_span.h"

namespace dsmoe::text {

struct CallEvent {
  enum class Kind {
    text,       // what is said
    begin,      // a call: the tool's name
    arguments,  // a piece of its arguments, JSON
    end,        // of the call
  };
  Kind kind = Kind::text;
  std::string text = {};
  bool operator==(const CallEvent&) const = default;
};

// No part of a marker is ever text. White space between text and a call is neither.
class CallReader {
 public:
  // `strings`: of each tool, the arguments that are strings by its schema, which some families
  // write without quotes.
  using StringArguments = std::map<std::string, std::set<std::string>>;
  explicit CallReader(const CallSyntax& syntax, StringArguments strings = {});

  std::vector<CallEvent> push(std::string_view piece);
  // The answer has ended: what was held back. An open call stays as far as it came.
  std::vector<CallEvent> finish();

  int64_t num_calls() const { return num_calls_; }

 private:
  enum class State { text, head, object, arguments, tail, key_value };
  using Events = std::vector<CallEvent>;

  bool step(Events& events);  // false: nothing more without further text
  bool read_text(Events& events);
  bool read_head(Events& events);
  bool read_object(Events& events);
  bool read_arguments(Events& events);
  bool read_tail();
  bool read_key_value(Events& events);
  bool read_pair(Events& events);
  void begin_call(Events& events, std::string name);
  void end_call(Events& events);
  std::string value_of(const std::string& key, std::string_view text) const;

  const CallSyntax& syntax_;
  StringArguments strings_;
  std::string begin_marker_, call_marker_, end_marker_;  // without white space and fixed words
  State state_ = State::text;
  std::string buffer_;  // not yet understood
  JsonSpan span_;       // the value being read
  std::string key_;     // of the object being read
  std::string name_, late_arguments_;
  bool has_begun_ = false;     // the call's name is out
  bool is_first_pair_ = true;  // of key_value
  int64_t num_calls_ = 0;
};

}  // namespace dsmoe::text

// How a model family writes calls of tools into its answers, found by the markers in its template.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::text {

// What stands between the markers of one call.
enum class CallBody {
  object,     // {"name": NAME, "arguments": {...}}
  named,      // NAME, a separator, {...}
  key_value,  // NAME, then for each argument its name and its value between markers
};

// The texts an answer with calls is made of. White space around the markers is not significant when
// read, and is written as here when forced:
//   section_begin (call_begin NAME name_end ARGUMENTS call_end) ... section_end
// With key_value the arguments are (key_begin KEY key_end VALUE value_end) ... Values are texts as
// they are, and JSON for everything that is none.
struct CallSyntax {
  std::string_view name;  // of the family, for messages
  CallBody body = CallBody::object;
  std::string_view section_begin = "";
  std::string_view call_begin = "";
  std::string_view name_begin = "";  // of key_value
  std::string_view name_end = "";
  std::string_view call_end = "";
  std::string_view section_end = "";
  std::string_view between = "";  // two calls
  std::string_view key_begin = "";
  std::string_view key_end = "";
  std::string_view value_end = "";

  std::string all_markers() const;  // all of these texts, one after the other
};

// <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>: Hermes, Qwen, and all models whose
// template knows nothing of tools.
const CallSyntax& hermes_syntax();

// The syntax whose markers stand in the template; null: it has none of the known ones.
const CallSyntax* find_call_syntax(std::string_view template_source);

}  // namespace dsmoe::text

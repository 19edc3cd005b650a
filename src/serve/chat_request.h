// What only a chat has in its body: messages, tools, how its template is to be rendered.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace dsmoe::serve {

inline constexpr std::size_t kMaxMessages = 4096;
inline constexpr std::size_t kMaxTools = 128;

struct Tool {
  std::string name;
  OrderedJson parameters;  // a JSON schema; null: none given
};

// Whether the answer may, or must, call one of the tools.
enum class ToolChoice { none, automatic, required };

struct ToolUse {
  OrderedJson given;           // the list as sent, for the template; null: none
  std::vector<Tool> callable;  // those that the answer may call
  ToolChoice choice = ToolChoice::none;
  bool parallel = true;  // several calls in one answer
};

struct ChatRequest {
  OrderedJson messages;  // role, content, tool calls, whatever names the template may read
  ToolUse tools;
  OrderedJson template_arguments;  // an object; null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// `text` is the body that `body` was parsed from: templates see keys in its order. Throws
// ApiError(400).
ChatRequest read_chat(const Json& body, std::string_view text);

}  // namespace dsmoe::serve

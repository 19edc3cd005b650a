// One line of JSONL -> what it holds: a text, a prompt and its completion, or a conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace dsmoe::data {

// Under which keys of a line the text lies. Where one is named, only the shapes that are named
// count; without any, all count, under "text", "prompt" and "completion", "messages".
struct JsonKeys {
  std::string text, prompt, completion, messages;

  bool are_named() const {
    return !(text.empty() && prompt.empty() && completion.empty() && messages.empty());
  }
};

// Roles are system, developer, user, assistant and tool. Every message has "role" and, as a string,
// "content" (empty beside "tool_calls"); arguments of calls are objects. Other keys are as they
// came, for templates that know them.
struct Chat {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = OrderedJson::array();  // what the line offers to call
};

struct JsonDocument {
  enum class Shape { text, pair, chat };
  Shape shape = Shape::text;
  std::string text;        // or the prompt
  std::string completion;  // of a pair
  Chat chat;
};

// Keys of no shape are left alone. Throws Error(input) that begins with `where` when the line has
// no shape or two, or holds something else than text where text belongs.
JsonDocument read_json_document(std::string_view line, const JsonKeys& keys,
                                const std::string& where);

// What a message says, calls as JSON: for those who count words, not for models.
std::string text_of(const OrderedJson& message);

}  // namespace dsmoe::data

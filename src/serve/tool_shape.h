// What an answer looks like that may, or must, call tools.
#pragma once

#include <optional>
#include <string>

#include "constrain/shape.h"
#include "serve/chat_request.h"
#include "text/tools/call_syntax.h"

namespace dsmoe::serve {

// With ToolChoice::automatic an answer is a text without the beginning of a call, or any text and
// then calls; with ToolChoice::required it is calls. Arguments are of the tool's schema. `instead`:
// what the text has to look like where the request says that too.
constrain::Shape tool_answer(const text::CallSyntax& syntax, const ToolUse& tools,
                             std::optional<constrain::Shape> instead);

// Whether an argument of this schema is a text, which some families write without quotes.
bool is_text_argument(const OrderedJson& schema);

// The same for everything that makes the same shape, but for `instead`.
std::string tool_answer_key(const text::CallSyntax& syntax, const ToolUse& tools);

}  // namespace dsmoe::serve

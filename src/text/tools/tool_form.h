// How the tools of a conversation get into a prompt: through the template, or beside it.
#pragma once

#include <string>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tools/call_syntax.h"

namespace dsmoe::text {

struct ToolForm {
  const CallSyntax* syntax = &hermes_syntax();  // of calls in answers
  bool shows_tools = false;                     // the template describes the tools it is given
  bool shows_turns = false;                     // and writes calls and their results
  bool arguments_are_text = false;              // it wants the arguments of a call as a string
  bool empty_is_none = true;                    // and no text beside a call as none, else as ""
};

// Found by rendering a short conversation with a tool, a call and its result.
ToolForm find_tool_form(const ChatTemplate& chat_template);

struct ToolMessages {
  OrderedJson messages;
  OrderedJson tools;  // for the template; null: none
};
// What to give the template: what it cannot show is written into the messages. Then tools are
// described in the system message, calls are text in their syntax, and results come from the user.
// Throws Error(input) that names the role of a message where a template shows tools and not their
// results. `tools`: a list; null: none.
ToolMessages with_tools(const ToolForm& form, OrderedJson messages, const OrderedJson& tools);

}  // namespace dsmoe::text

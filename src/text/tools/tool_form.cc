// Probes of a template, and the form for those that have none.
#include "text/tools/tool_form.h"

#include <optional>
#include <utility>

#include "base/error.h"

namespace dsmoe::text {
namespace {

constexpr const char* kName = "probe_tool_name";
constexpr const char* kValue = "probe_tool_value";
constexpr const char* kResult = "probe_tool_result";

std::string one_line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson probe_tools() {
  return {
      {{"type", "function"},
       {"function",
        {{"name", kName},
         {"description", "a probe"},
         {"parameters", {{"type", "object"}, {"properties", {{"word", {{"type", "string"}}}}}}}}}}};
}

OrderedJson probe_messages() {
  OrderedJson messages = OrderedJson::array();
  messages.push_back({{"role", "user"}, {"content", "Hello"}});
  return messages;
}

OrderedJson probe_turns() {
  OrderedJson messages = probe_messages();
  const OrderedJson call{{"id", "probe0001"},
                         {"type", "function"},
                         {"function", {{"name", kName}, {"arguments", {{"word", kValue}}}}}};
  messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  messages.back()["tool_calls"] = OrderedJson::array({call});
  messages.push_back(
      {{"role", "tool"}, {"content", kResult}, {"tool_call_id", "probe0001"}, {"name", kName}});
  return messages;
}

// Nothing where the template refuses it.
std::optional<std::string> render(const ChatTemplate& chat_template, OrderedJson messages,
                                  OrderedJson tools) {
  OrderedJson extra = OrderedJson::object();
  if (!tools.is_null()) extra["tools"] = std::move(tools);
  try {
    return chat_template.render({.messages = std::move(messages),
                                 .bos_token = "",
                                 .eos_token = "",
                                 .extra = std::move(extra)});
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool holds(const std::optional<std::string>& text, const char* word) {
  return text && text->find(word) != std::string::npos;
}

std::string content_of(const OrderedJson& message) {
  return message["content"].is_string() ? message["content"].get<std::string>() : "";
}

// A call as the answer would have it.
std::string call_text(const CallSyntax& syntax, const std::string& name,
                      const OrderedJson& arguments) {
  const std::string begin(syntax.call_begin), end(syntax.call_end);
  if (syntax.body == CallBody::object) {
    return begin + "\n{\"name\": " + OrderedJson(name).dump() +
           ", \"arguments\": " + one_line(arguments) + "}\n" + end;
  }
  std::string text = begin + std::string(syntax.name_begin) + name + std::string(syntax.name_end);
  if (syntax.body == CallBody::named) return text + one_line(arguments) + end;
  for (const auto& [key, value] : arguments.items()) {
    text += syntax.key_begin;
    text += key;
    text += syntax.key_end;
    text += value.is_string() ? value.get<std::string>() : one_line(value);
    text += syntax.value_end;
  }
  return text + end;
}

std::string calls_text(const CallSyntax& syntax, const OrderedJson& calls) {
  std::string text(syntax.section_begin);
  bool is_first = true;
  for (const OrderedJson& call : calls) {
    if (!std::exchange(is_first, false)) text += syntax.between;
    text += call_text(syntax, call["function"]["name"], call["function"]["arguments"]);
  }
  return text + std::string(syntax.section_end);
}

std::string instructions(const CallSyntax& syntax, const OrderedJson& tools) {
  std::string text = "You may call tools. Each line is one of them:\n";
  for (const OrderedJson& tool : tools) text += one_line(tool) + "\n";
  return text + "To call a tool, answer in this form:\n" + std::string(syntax.section_begin) +
         call_text(syntax, "NAME", {{"ARGUMENT", "VALUE"}}) + std::string(syntax.section_end);
}

void describe_tools(const CallSyntax& syntax, const OrderedJson& tools, OrderedJson& messages) {
  const std::string text = instructions(syntax, tools);
  if (!messages.empty() && messages[0]["role"] == "system") {
    messages[0]["content"] = content_of(messages[0]) + "\n\n" + text;
  } else {
    // A braced list would be inserted member by member.
    const OrderedJson system{{"role", "system"}, {"content", text}};
    messages.insert(messages.begin(), system);
  }
}

OrderedJson turns_as_text(const CallSyntax& syntax, const OrderedJson& messages) {
  OrderedJson plain = OrderedJson::array();
  bool last_is_result = false;
  for (const OrderedJson& message : messages) {
    const bool is_result = message["role"] == "tool";
    OrderedJson copy = message;
    if (is_result) {
      copy = {{"role", "user"},
              {"content", "<tool_response>\n" + content_of(message) + "\n</tool_response>"}};
    } else if (message.contains("tool_calls")) {
      const std::string said = content_of(message);
      copy["content"] =
          said + (said.empty() ? "" : "\n") + calls_text(syntax, message["tool_calls"]);
      copy.erase("tool_calls");
    }
    // Results of calls made together come together: templates want roles to take turns.
    if (is_result && last_is_result) {
      plain.back()["content"] = content_of(plain.back()) + "\n" + content_of(copy);
    } else {
      plain.push_back(std::move(copy));
    }
    last_is_result = is_result;
  }
  return plain;
}

// As this template wants its calls.
OrderedJson adapted(const ToolForm& form, OrderedJson messages) {
  for (OrderedJson& message : messages) {
    if (!message.contains("tool_calls")) continue;
    if (content_of(message).empty() && !form.empty_is_none) message["content"] = "";
    for (OrderedJson& call : message["tool_calls"]) {
      OrderedJson& arguments = call["function"]["arguments"];
      if (form.arguments_are_text && !arguments.is_string()) arguments = one_line(arguments);
    }
  }
  return messages;
}

bool has_turns(const OrderedJson& message) {
  return message["role"] == "tool" || message.contains("tool_calls");
}

}  // namespace

ToolForm find_tool_form(const ChatTemplate& chat_template) {
  const CallSyntax* syntax = find_call_syntax(chat_template.source());
  if (syntax == nullptr) return {};
  ToolForm form{.syntax = syntax};
  form.shows_tools = holds(render(chat_template, probe_messages(), probe_tools()), kName);
  const OrderedJson tools = form.shows_tools ? probe_tools() : OrderedJson();
  for (const bool is_text : {false, true}) {
    for (const bool is_none : {true, false}) {
      form.arguments_are_text = is_text;
      form.empty_is_none = is_none;
      const auto text = render(chat_template, adapted(form, probe_turns()), tools);
      form.shows_turns = holds(text, kResult) && holds(text, kValue);
      if (form.shows_turns) return form;
    }
  }
  if (!form.shows_tools) return {};
  return form;
}

ToolMessages with_tools(const ToolForm& form, OrderedJson messages, const OrderedJson& tools) {
  const bool has_tools = !tools.is_null() && !tools.empty();
  if (form.shows_tools && !form.shows_turns) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (!has_turns(messages[i])) continue;
      fail(ErrorKind::input,
           "messages[{}].role: this model's chat template has no place for calls of tools and "
           "their results",
           i);
    }
  }
  ToolMessages given{.messages = form.shows_turns ? adapted(form, std::move(messages))
                                                  : turns_as_text(*form.syntax, messages)};
  if (has_tools && form.shows_tools) given.tools = tools;
  if (has_tools && !form.shows_tools) describe_tools(*form.syntax, tools, given.messages);
  return given;
}

}  // namespace dsmoe::text

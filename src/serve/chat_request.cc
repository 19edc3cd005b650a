// Messages and tools, checked and brought into the form that templates read.
#include "serve/chat_request.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/memory_reserve.h"
#include "serve/api_error.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxToolName = 64;

std::string text_of_content(const Json& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse(name, "{}: expected a string or a list of text parts, got {}", name, kind_of(content));
  }
  std::string text;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      refuse(name, "{}: only parts of the form {{\"type\": \"text\", \"text\": ...}} are supported",
             name);
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Tool names come back inside of markers, so nothing that could be one is taken.
std::string tool_name(const Json& object, const std::string& name) {
  const auto text = string_field(object, "name", std::size_t{1} << 20);
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!text || text->empty() || text->size() > kMaxToolName ||
      !std::all_of(text->begin(), text->end(), is_plain)) {
    refuse(name + ".name", "{}.name: expected 1 to {} letters, digits, '_', '-' or '.'", name,
           kMaxToolName);
  }
  return *text;
}

const Json& object_at(const Json& parent, const char* field, const std::string& name) {
  const Json* value = find_field(parent, field);
  if (value == nullptr || !value->is_object()) {
    refuse(name, "{}: expected an object, got {}", name,
           value == nullptr ? "nothing" : kind_of(*value));
  }
  return *value;
}

const Json& list_at(const Json& value, const std::string& name, std::size_t most) {
  if (!value.is_array()) refuse(name, "{}: expected a list, got {}", name, kind_of(value));
  if (value.size() > most) {
    refuse(name, "{}: {} entries, at most {} are possible", name, value.size(), most);
  }
  return value;
}

void check_function_type(const Json& object, const std::string& name) {
  const auto type = string_field(object, "type", 64);
  if (type && *type == "function") return;
  refuse(name + ".type", "{}.type: only \"function\" is supported", name);
}

// A call of an earlier answer. Templates read its arguments as a dict, in the order they were
// written in.
OrderedJson past_call(const Json& call, const std::string& name) {
  if (!call.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(call));
  if (find_field(call, "type") != nullptr) check_function_type(call, name);
  const Json& function = object_at(call, "function", name + ".function");
  const std::string arguments_name = name + ".function.arguments";
  const auto text = string_field(function, "arguments", std::size_t{1} << 20).value_or("");
  OrderedJson arguments = OrderedJson::object();
  if (!text.empty()) {
    try {
      arguments = parse_ordered_json(text, arguments_name, kBodyLimits);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), arguments_name).quoting();
    }
  }
  if (!arguments.is_object()) {
    refuse(arguments_name, "{}: expected the text of a JSON object", arguments_name);
  }
  return {
      {"id", string_field(call, "id", 256).value_or("")},
      {"type", "function"},
      {"function",
       {{"name", tool_name(function, name + ".function")}, {"arguments", std::move(arguments)}}}};
}

// The name of the tool behind every call so far: results name only the call.
using CallNames = std::map<std::string, std::string>;

OrderedJson past_calls(const Json& calls, const std::string& name, CallNames& names) {
  OrderedJson list = OrderedJson::array();
  for (const Json& call : list_at(calls, name, kMaxTools)) {
    list.push_back(past_call(call, fmt::format("{}[{}]", name, list.size())));
    names[list.back()["id"].get<std::string>()] = list.back()["function"]["name"];
  }
  return list;
}

std::string role_of(const Json& message, const std::string& name) {
  const auto role = string_field(message, "role", 32);
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  if (!role || std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles)) {
    throw ApiError(
        400,
        fmt::format("{}.role: expected system, developer, user, assistant or tool, got {}", name,
                    role ? *role : "nothing"),
        name + ".role")
        .quoting();
  }
  return *role == "developer" ? "system" : *role;  // templates know the older name
}

OrderedJson read_message(const Json& message, const std::string& name, CallNames& names) {
  if (!message.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(message));
  const std::string role = role_of(message, name);
  refuse_unsupported(message, unsupported_message_fields(), name + ".");
  const Json* content = find_field(message, "content");
  if (content == nullptr && role != "assistant") {
    refuse(name + ".content", "{}.content: it is missing", name);
  }
  const Json* calls = find_field(message, "tool_calls");
  const bool has_calls = calls != nullptr && !(calls->is_array() && calls->empty());
  if (has_calls && role != "assistant") {
    refuse(name + ".tool_calls", "{}.tool_calls: only an assistant's message has them", name);
  }
  OrderedJson copy{{"role", role}};
  const std::string text = content == nullptr ? "" : text_of_content(*content, name + ".content");
  copy["content"] = text;
  // Published templates take a call for one by its missing text.
  if (has_calls && text.empty()) copy["content"] = nullptr;
  if (has_calls) copy["tool_calls"] = past_calls(*calls, name + ".tool_calls", names);
  if (const auto thought = string_field(message, "reasoning_content", std::size_t{1} << 22)) {
    copy["reasoning_content"] = *thought;
  }
  auto author = string_field(message, "name", 256);
  if (role == "tool") {
    const std::string id = string_field(message, "tool_call_id", 256).value_or("");
    copy["tool_call_id"] = id;
    if (!author && names.contains(id)) author = names[id];
  }
  if (author) copy["name"] = *author;
  return copy;
}

OrderedJson read_messages(const Json& body) {
  const Json* messages = find_field(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    refuse("messages", "messages: expected a list of at least one message, got {}",
           messages == nullptr    ? "nothing"
           : messages->is_array() ? "an empty list"
                                  : kind_of(*messages));
  }
  list_at(*messages, "messages", kMaxMessages);
  OrderedJson list = OrderedJson::array();
  CallNames names;
  for (const Json& message : *messages) {
    list.push_back(read_message(message, fmt::format("messages[{}]", list.size()), names));
  }
  return list;
}

// The name that `tool_choice` asks for; empty where it is one of the words, which go to `choice`.
std::string read_tool_choice(const Json& value, ToolChoice& choice) {
  if (value == "none" || value == "auto" || value == "required") {
    choice = value == "none"   ? ToolChoice::none
             : value == "auto" ? ToolChoice::automatic
                               : ToolChoice::required;
    return "";
  }
  if (!value.is_object()) {
    refuse("tool_choice",
           "tool_choice: expected \"none\", \"auto\", \"required\" or "
           "{{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
  }
  check_function_type(value, "tool_choice");
  choice = ToolChoice::required;
  return tool_name(object_at(value, "function", "tool_choice.function"), "tool_choice.function");
}

Tool read_tool(const Json& tool, const OrderedJson& as_sent, const std::string& name) {
  if (!tool.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(tool));
  check_function_type(tool, name);
  const Json& function = object_at(tool, "function", name + ".function");
  Tool read{.name = tool_name(function, name + ".function")};
  string_field(function, "description", std::size_t{1} << 20);
  bool_field(function, "strict");
  if (find_field(function, "parameters") != nullptr) {
    object_at(function, "parameters", name + ".function.parameters");
    read.parameters = as_sent["function"]["parameters"];
  }
  return read;
}

ToolUse read_tools(const Json& body, const OrderedJson& as_sent) {
  ToolUse use;
  const Json* tools = find_field(body, "tools");
  if (tools != nullptr) list_at(*tools, "tools", kMaxTools);
  const bool has_tools = tools != nullptr && !tools->empty();
  if (has_tools) use.choice = ToolChoice::automatic;
  std::string only;
  if (const Json* choice = find_field(body, "tool_choice")) {
    only = read_tool_choice(*choice, use.choice);
  }
  const Json* parallel = find_field(body, "parallel_tool_calls");
  use.parallel = parallel == nullptr || bool_field(body, "parallel_tool_calls");
  if (!has_tools) {
    if (use.choice == ToolChoice::none) return {};
    refuse("tool_choice", "tool_choice: there are no tools to choose from; send tools too");
  }
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    Tool tool = read_tool((*tools)[i], as_sent["tools"][i], name);
    const auto has_its_name = [&](const Tool& other) { return other.name == tool.name; };
    if (std::any_of(use.callable.begin(), use.callable.end(), has_its_name)) {
      refuse(name, "{}: two tools have this name", name);
    }
    use.callable.push_back(std::move(tool));
  }
  if (!only.empty()) {
    std::erase_if(use.callable, [&](const Tool& tool) { return tool.name != only; });
    if (use.callable.empty()) {
      refuse("tool_choice", "tool_choice: none of the tools has this name");
    }
    use.parallel = false;
  }
  // A model that may not call any is not told about them.
  if (use.choice == ToolChoice::none) return {};
  use.given = as_sent["tools"];
  return use;
}

void read_template_arguments(const Json& body, const OrderedJson& as_sent, ChatRequest& chat) {
  if (find_field(body, "chat_template_kwargs") == nullptr) return;
  const Json& arguments = object_at(body, "chat_template_kwargs", "chat_template_kwargs");
  for (const char* own : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
    if (!arguments.contains(own)) continue;
    const std::string name = std::string("chat_template_kwargs.") + own;
    refuse(name, "{}: the server gives this one to the template", name);
  }
  chat.template_arguments = as_sent["chat_template_kwargs"];
}

// What templates read is copied for them, and goes with the request.
void check_size(const OrderedJson& as_sent, const char* field) {
  constexpr std::size_t kMaxValues = std::size_t{1} << 16;
  const auto found = as_sent.find(field);
  const std::size_t count = found == as_sent.end() ? 0 : num_values(*found);
  if (count > kMaxValues) {
    refuse(field, "{}: {} values, at most {} are possible", field, count, kMaxValues);
  }
}

}  // namespace

ChatRequest read_chat(const Json& body, std::string_view text) {
  const KeepReserve keep;
  ChatRequest chat;
  chat.messages = read_messages(body);
  const bool order_matters =
      find_field(body, "tools") != nullptr || find_field(body, "chat_template_kwargs") != nullptr;
  JsonOwner owner(order_matters ? parse_ordered_json(text, "request body", kBodyLimits)
                                : OrderedJson());
  const OrderedJson& as_sent = *owner;
  for (const char* field : {"tools", "chat_template_kwargs"}) check_size(as_sent, field);
  chat.tools = read_tools(body, as_sent);
  read_template_arguments(body, as_sent, chat);
  chat.continue_final_message = bool_field(body, "continue_final_message");
  const Json* adds = find_field(body, "add_generation_prompt");
  chat.add_generation_prompt =
      adds == nullptr ? !chat.continue_final_message : bool_field(body, "add_generation_prompt");
  if (chat.continue_final_message && chat.add_generation_prompt) {
    refuse("continue_final_message",
           "continue_final_message: not possible with add_generation_prompt true");
  }
  return chat;
}

}  // namespace dsmoe::serve

// Anthropic's Messages: the system text beside the messages, contents in blocks.
#include "base/memory_reserve.h"
#include "serve/api_error.h"
#include "serve/chat_dialect.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxText = std::size_t{8} << 20;

std::span<const UnsupportedField> unsupported_messages_fields() {
  static const Json kNone = Json::array();
  static const Json kNoThoughts = Json::object({{"type", "disabled"}});
  static const UnsupportedField kFields[] = {{"thinking", {kNoThoughts}},
                                             {"container", {}},
                                             {"mcp_servers", {kNone}},
                                             {"context_management", {}}};
  return kFields;
}

std::span<const UnsupportedField> unsupported_output_fields() {
  static const UnsupportedField kFields[] = {{"effort", {}}, {"task_budget", {}}};
  return kFields;
}

std::string text_at(const Json& block, const char* field, const std::string& name) {
  const auto text = string_field(block, field, kMaxText);
  if (!text) refuse(name + "." + field, "{}.{}: it is missing", name, field);
  return *text;
}

// What the blocks of one message say.
struct Blocks {
  std::string text;
  OrderedJson calls = OrderedJson::array();
  OrderedJson results = OrderedJson::array();  // messages of the role tool
};

void add_block(const Json& block, const OrderedJson& as_sent, const std::string& name,
               Blocks& blocks) {
  if (!block.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(block));
  const std::string type = text_at(block, "type", name);
  if (type == "text") {
    blocks.text += text_at(block, "text", name);
  } else if (type == "tool_use") {
    const Json* input = find_field(block, "input");
    if (input == nullptr || !input->is_object()) {
      refuse(name + ".input", "{}.input: expected an object", name);
    }
    blocks.calls.push_back(
        {{"id", text_at(block, "id", name)},
         {"type", "function"},
         {"function",
          {{"name", text_at(block, "name", name)}, {"arguments", as_sent["input"].dump()}}}});
  } else if (type == "tool_result") {
    const Json* content = find_field(block, "content");
    blocks.results.push_back(
        {{"role", "tool"},
         {"content",
          content == nullptr ? "" : text_of_parts(*content, name + ".content", {"text"})},
         {"tool_call_id", text_at(block, "tool_use_id", name)}});
  } else if (type != "thinking" && type != "redacted_thinking") {
    refuse(name + ".type", "{}.type: expected text, tool_use or tool_result", name);
  }
}

void add_message(const Json& message, const OrderedJson& as_sent, const std::string& name,
                 OrderedJson& messages) {
  if (!message.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(message));
  const std::string role = text_at(message, "role", name);
  if (role != "user" && role != "assistant") {
    refuse(name + ".role", "{}.role: expected user or assistant", name);
  }
  const Json* content = find_field(message, "content");
  Blocks blocks;
  if (content != nullptr && content->is_string()) {
    blocks.text = content->get<std::string>();
  } else if (content != nullptr && content->is_array()) {
    for (std::size_t i = 0; i < content->size(); ++i) {
      add_block((*content)[i], as_sent["content"][i], fmt::format("{}.content[{}]", name, i),
                blocks);
    }
  } else {
    refuse(name + ".content", "{}.content: expected a string or a list of blocks", name);
  }
  for (OrderedJson& result : blocks.results) messages.push_back(std::move(result));
  if (!blocks.results.empty() && blocks.text.empty()) return;
  messages.push_back({{"role", role}, {"content", blocks.text}});
  if (!blocks.calls.empty()) messages.back()["tool_calls"] = std::move(blocks.calls);
}

OrderedJson tools_of(const OrderedJson& tools) {
  OrderedJson list = OrderedJson::array();
  if (!tools.is_array()) refuse("tools", "tools: expected a list");
  for (const OrderedJson& tool : tools) {
    const std::string name = fmt::format("tools[{}]", list.size());
    const bool is_custom = tool.is_object() && (!tool.contains("type") || tool["type"].is_null() ||
                                                tool["type"] == "custom");
    if (!is_custom) refuse(name + ".type", "{}.type: only \"custom\" is supported", name);
    OrderedJson function = OrderedJson::object();
    for (const char* field : {"name", "description", "strict"}) {
      if (tool.contains(field)) function[field] = tool[field];
    }
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

void add_tool_choice(const Json& body, OrderedJson& chat) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  const auto type = choice->is_object() ? string_field(*choice, "type", 64) : std::nullopt;
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = *type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", text_at(*choice, "name", "tool_choice")}}}};
  } else {
    refuse("tool_choice",
           "tool_choice: expected {{\"type\": \"auto\"}}, \"any\", \"tool\" with a "
           "name, or \"none\"");
  }
  if (bool_field(*choice, "disable_parallel_tool_use")) chat["parallel_tool_calls"] = false;
}

// What the answer must look like: output_config.format, which older clients call output_format.
void add_format(const Json& body, const OrderedJson& as_sent, OrderedJson& chat) {
  const auto add = [&](const Json& holder, const OrderedJson& sent, const char* field,
                       const std::string& name) {
    const Json* format = find_field(holder, field);
    if (format == nullptr) return;
    const bool is_schema = format->is_object() &&
                           string_field(*format, "type", 64) == "json_schema" &&
                           find_field(*format, "schema") != nullptr;
    if (!is_schema) {
      refuse(name, "{}: expected {{\"type\": \"json_schema\", \"schema\": ...}}", name);
    }
    chat["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"schema", sent[field]["schema"]}}}};
  };
  add(body, as_sent, "output_format", "output_format");
  const Json* config = find_field(body, "output_config");
  if (config == nullptr) return;
  if (!config->is_object()) {
    refuse("output_config", "output_config: expected an object, got {}", kind_of(*config));
  }
  refuse_unsupported(*config, unsupported_output_fields(), "output_config.");
  add(*config, as_sent["output_config"], "format", "output_config.format");
}

}  // namespace

TranslatedChat translate_messages(std::string_view text, MessagesFor purpose) {
  const KeepReserve keep;
  JsonOwner owner(parse_body(text));
  const Json& body = *owner;
  refuse_unsupported(body, unsupported_messages_fields());
  refuse_unsupported_in_dialect(body, {"stop_sequences"});
  JsonOwner ordered(parse_ordered_json(text, "request body", kBodyLimits));
  const OrderedJson& as_sent = *ordered;
  JsonOwner made((OrderedJson()));
  OrderedJson& chat = *made;
  copy_common_fields(as_sent, chat);
  if (const Json* stops = find_field(body, "stop_sequences")) {
    if (!stops->is_array()) refuse("stop_sequences", "stop_sequences: expected a list of strings");
    if (chat.contains("stop")) refuse("stop", "stop: not possible together with stop_sequences");
    chat["stop"] = *stops;
  }
  const auto most = integer_field(body, "max_tokens", {1, int64_t{1} << 24});
  if (most) chat["max_tokens"] = *most;
  if (!most && purpose == MessagesFor::an_answer) {
    refuse("max_tokens", "max_tokens: it is missing");
  }
  OrderedJson messages = OrderedJson::array();
  if (const Json* system = find_field(body, "system")) {
    messages.push_back(
        {{"role", "system"}, {"content", text_of_parts(*system, "system", {"text"})}});
  }
  const Json* turns = find_field(body, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    refuse("messages", "messages: expected a list of at least one message");
  }
  if (turns->size() > kMaxMessages) {
    refuse("messages", "messages: {} messages, at most {} are possible", turns->size(),
           kMaxMessages);
  }
  for (std::size_t i = 0; i < turns->size(); ++i) {
    add_message((*turns)[i], as_sent["messages"][i], fmt::format("messages[{}]", i), messages);
  }
  // An assistant's text at the end is the beginning of the answer.
  if (messages.back()["role"] == "assistant" && !messages.back().contains("tool_calls")) {
    chat["continue_final_message"] = true;
  }
  chat["messages"] = std::move(messages);
  if (find_field(body, "tools") != nullptr) chat["tools"] = tools_of(as_sent["tools"]);
  add_tool_choice(body, chat);
  add_format(body, as_sent, chat);
  if (as_sent.contains("structured_outputs")) {
    chat["structured_outputs"] = as_sent["structured_outputs"];
  }
  return {.body = chat.dump()};
}

}  // namespace dsmoe::serve

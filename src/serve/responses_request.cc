// OpenAI's Responses: a list of items instead of messages, tools without a wrapper.
#include <algorithm>

#include "base/memory_reserve.h"
#include "serve/api_error.h"
#include "serve/chat_dialect.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxText = std::size_t{8} << 20;

std::span<const UnsupportedField> unsupported_responses_fields() {
  static const Json kNone = Json::array(), kNothing = Json::object();
  static const UnsupportedField kFields[] = {{"store", {false}},
                                             {"previous_response_id", {}},
                                             {"conversation", {}},
                                             {"background", {false}},
                                             {"prompt", {}},
                                             {"truncation", {"disabled"}},
                                             {"max_tool_calls", {}},
                                             {"reasoning", {kNothing}},
                                             {"context_management", {kNone}},
                                             {"messages", {}},
                                             {"max_tokens", {}},
                                             {"response_format", {}}};
  return kFields;
}

// Calls that follow each other, or an assistant's text, are one message.
OrderedJson& assistant_for_call(OrderedJson& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  OrderedJson& message = messages.back();
  if (!message.contains("tool_calls")) message["tool_calls"] = OrderedJson::array();
  return message;
}

void add_item(const Json& item, const std::string& name, OrderedJson& messages) {
  if (!item.is_object()) refuse(name, "{}: expected an object, got {}", name, kind_of(item));
  const std::string type = string_field(item, "type", 64).value_or("message");
  const auto text = [&](const char* field) {
    const auto value = string_field(item, field, kMaxText);
    if (!value) refuse(name + "." + field, "{}.{}: it is missing", name, field);
    return *value;
  };
  const auto content = [&](const char* field) {
    const Json* value = find_field(item, field);
    const std::string field_name = name + "." + field;
    if (value == nullptr) refuse(field_name, "{}: it is missing", field_name);
    return text_of_parts(*value, field_name, {"input_text", "output_text", "text"});
  };
  if (type == "message") {
    messages.push_back({{"role", text("role")}, {"content", content("content")}});
  } else if (type == "function_call") {
    assistant_for_call(messages)["tool_calls"].push_back(
        {{"id", text("call_id")},
         {"type", "function"},
         {"function", {{"name", text("name")}, {"arguments", text("arguments")}}}});
  } else if (type == "function_call_output") {
    messages.push_back(
        {{"role", "tool"}, {"content", content("output")}, {"tool_call_id", text("call_id")}});
  } else if (type != "reasoning") {  // thoughts of earlier answers are not shown again
    refuse(name + ".type",
           "{}.type: expected message, function_call, function_call_output or reasoning", name);
  }
}

OrderedJson messages_of(const Json& body) {
  OrderedJson messages = OrderedJson::array();
  if (const auto text = string_field(body, "instructions", kMaxText)) {
    messages.push_back({{"role", "system"}, {"content", *text}});
  }
  const Json* input = find_field(body, "input");
  if (input == nullptr) refuse("input", "input: expected a string or a list, it is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array()) {
    refuse("input", "input: expected a string or a list, got {}", kind_of(*input));
  }
  if (input->empty()) refuse("input", "input: it is empty");
  if (input->size() > kMaxMessages) {
    refuse("input", "input: {} items, at most {} are possible", input->size(), kMaxMessages);
  }
  for (std::size_t i = 0; i < input->size(); ++i) {
    add_item((*input)[i], fmt::format("input[{}]", i), messages);
  }
  return messages;
}

OrderedJson tools_of(const OrderedJson& tools) {
  OrderedJson list = OrderedJson::array();
  if (!tools.is_array()) refuse("tools", "tools: expected a list");
  for (const OrderedJson& tool : tools) {
    const std::string name = fmt::format("tools[{}]", list.size());
    if (!tool.is_object() || !tool.contains("type") || tool["type"] != "function") {
      refuse(name + ".type", "{}.type: only \"function\" is supported", name);
    }
    OrderedJson function = tool;
    function.erase("type");
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

// The format of the text: {"type": "json_schema", "name", "schema", "strict"} has no wrapper.
void add_format(const Json& body, const OrderedJson& as_sent, OrderedJson& chat) {
  const Json* text = find_field(body, "text");
  if (text == nullptr) return;
  if (!text->is_object()) refuse("text", "text: expected an object, got {}", kind_of(*text));
  const Json* format = find_field(*text, "format");
  if (format == nullptr) return;
  if (!format->is_object()) {
    refuse("text.format", "text.format: expected an object, got {}", kind_of(*format));
  }
  const std::string type = string_field(*format, "type", 64).value_or("text");
  chat["response_format"] = {{"type", type}};
  if (type != "json_schema") return;
  OrderedJson schema = as_sent["text"]["format"];
  schema.erase("type");
  chat["response_format"]["json_schema"] = std::move(schema);
}

void add_tool_choice(const Json& body, OrderedJson& chat) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  chat["tool_choice"] = *choice;
  if (!choice->is_object()) return;
  if (choice->value("type", Json()) != "function") {
    refuse("tool_choice.type", "tool_choice.type: only \"function\" is supported");
  }
  chat["tool_choice"] = {{"type", "function"},
                         {"function", {{"name", choice->value("name", Json())}}}};
}

// How much of the request its answer says again.
struct Repeated {
  std::size_t values = 0, bytes = 0;
};

// It is written up to three times, by the thread of HTTP.
void check_repeated(const char* name, const OrderedJson& value, Repeated& sum) {
  constexpr std::size_t kMaxValues = std::size_t{1} << 14, kMaxBytes = std::size_t{1} << 20;
  sum.values += num_values(value);
  sum.bytes += value.dump().size();
  if (sum.values <= kMaxValues && sum.bytes <= kMaxBytes) return;
  refuse(name,
         "{}: too large: what an answer says again of its request may have {} values and {} bytes",
         name, kMaxValues, kMaxBytes);
}

}  // namespace

void copy_common_fields(const OrderedJson& from, OrderedJson& to) {
  static constexpr const char* kNames[] = {"model",
                                           "stream",
                                           "user",
                                           "seed",
                                           "temperature",
                                           "top_p",
                                           "top_k",
                                           "min_p",
                                           "repetition_penalty",
                                           "presence_penalty",
                                           "frequency_penalty",
                                           "logit_bias",
                                           "bad_words",
                                           "banned_strings",
                                           "allowed_token_ids",
                                           "min_tokens",
                                           "ignore_eos",
                                           "stop",
                                           "stop_token_ids",
                                           "include_stop_str_in_output",
                                           "skip_special_tokens",
                                           "truncate_prompt_tokens",
                                           "parallel_tool_calls",
                                           "chat_template_kwargs",
                                           "num_experts_per_tok",
                                           "guided_json",
                                           "guided_regex",
                                           "guided_choice",
                                           "guided_grammar",
                                           "structured_outputs",
                                           "json_schema",
                                           "regex",
                                           "grammar",
                                           "ebnf"};
  for (const char* name : kNames) {
    const auto found = from.find(name);
    if (found != from.end() && !found->is_null()) to[name] = *found;
  }
}

std::string text_of_parts(const Json& content, const std::string& name,
                          std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse(name, "{}: expected a string or a list of parts, got {}", name, kind_of(content));
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_name = fmt::format("{}[{}]", name, i);
    const auto type = part.is_object() ? string_field(part, "type", 64) : std::nullopt;
    const bool is_text = type && std::find(types.begin(), types.end(), *type) != types.end() &&
                         find_field(part, "text") != nullptr;
    if (!is_text) refuse(part_name, "{}: only parts that are text are supported", part_name);
    text += string_field(part, "text", kMaxText).value_or("");
  }
  return text;
}

TranslatedChat translate_responses(std::string_view text) {
  const KeepReserve keep;
  JsonOwner owner(parse_body(text));
  const Json& body = *owner;
  refuse_unsupported(body, unsupported_responses_fields());
  refuse_unsupported_in_dialect(body, {"max_output_tokens"});
  JsonOwner ordered(parse_ordered_json(text, "request body", kBodyLimits));
  const OrderedJson& as_sent = *ordered;
  JsonOwner made((OrderedJson()));
  OrderedJson& chat = *made;
  copy_common_fields(as_sent, chat);
  if (const auto most = integer_field(body, "max_output_tokens", {1, int64_t{1} << 24})) {
    chat["max_tokens"] = *most;
  }
  chat["messages"] = messages_of(body);
  if (find_field(body, "tools") != nullptr) chat["tools"] = tools_of(as_sent["tools"]);
  add_tool_choice(body, chat);
  add_format(body, as_sent, chat);
  TranslatedChat translated{.body = chat.dump()};
  Repeated repeated;
  for (const char* name : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
                           "temperature", "text", "tool_choice", "tools", "top_p", "user"}) {
    if (!as_sent.contains(name)) continue;
    check_repeated(name, as_sent[name], repeated);
    translated.repeated[name] = as_sent[name];
  }
  return translated;
}

}  // namespace dsmoe::serve

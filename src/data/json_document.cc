// Which shape a line has, and its fields checked.
#include "data/json_document.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::data {
namespace {

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant",
                                                 "tool"};

// The keys a run looks for; empty: a shape that is not wanted.
JsonKeys wanted_keys(const JsonKeys& named) {
  if (!named.are_named()) return {"text", "prompt", "completion", "messages"};
  JsonKeys keys = named;
  if (!keys.prompt.empty() || !keys.completion.empty()) {
    if (keys.prompt.empty()) keys.prompt = "prompt";
    if (keys.completion.empty()) keys.completion = "completion";
  }
  return keys;
}

std::string in_braces(std::initializer_list<std::string_view> keys) {
  std::string text;
  for (const std::string_view key : keys) text += (text.empty() ? "" : ", ") + in_quotes(key);
  return "{" + text + "}";
}

// The shapes that `keys` allow, in words.
std::vector<std::string> shapes_of(const JsonKeys& keys) {
  std::vector<std::string> shapes;
  if (!keys.text.empty()) shapes.push_back(in_braces({keys.text}));
  if (!keys.prompt.empty()) shapes.push_back(in_braces({keys.prompt, keys.completion}));
  if (!keys.messages.empty()) shapes.push_back(in_braces({keys.messages}));
  return shapes;
}

std::string listed(const std::vector<std::string>& words, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? std::string(last) : ", ";
    text += words[i];
  }
  return text;
}

// A few of the keys a line has: for messages.
std::string keys_of(const OrderedJson& object) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> names;
  for (const auto& [key, ignored] : object.items()) {
    if (names.size() == kMost) break;
    names.push_back(in_quotes(key));
  }
  if (names.empty()) return "no key";
  if (object.size() > names.size()) names.push_back("more");
  return listed(names, " and ");
}

constexpr std::string_view kAdvice =
    "--text-key, --prompt-key, --completion-key and --messages-key name other keys";

JsonDocument::Shape shape_of(const OrderedJson& object, const JsonKeys& keys,
                             const std::string& where) {
  const auto has = [&](const std::string& key) { return !key.empty() && object.contains(key); };
  using Shape = JsonDocument::Shape;
  std::vector<Shape> found;
  std::vector<std::string> shapes;
  if (has(keys.text)) found.push_back(Shape::text), shapes.push_back(in_braces({keys.text}));
  if (has(keys.prompt) && has(keys.completion)) {
    found.push_back(Shape::pair);
    shapes.push_back(in_braces({keys.prompt, keys.completion}));
  }
  if (has(keys.messages)) {
    found.push_back(Shape::chat);
    shapes.push_back(in_braces({keys.messages}));
  }
  if (found.size() == 1) return found.front();
  if (found.size() > 1) {
    fail(ErrorKind::input,
         "{}: it is {} at once; say which is meant with --text-key, --completion-key or "
         "--messages-key",
         where, listed(shapes, " and "));
  }
  const std::string expected = listed(shapes_of(keys), " or ");
  if (has(keys.prompt) || has(keys.completion)) {
    fail(ErrorKind::input, "{}: key {} is missing; expected {}", where,
         in_quotes(has(keys.prompt) ? keys.completion : keys.prompt), expected);
  }
  fail(ErrorKind::input, "{}: it has {}; expected {}; {}", where, keys_of(object), expected,
       kAdvice);
}

std::string string_field(const OrderedJson& object, const std::string& key,
                         std::string_view where) {
  const OrderedJson& value = object.at(key);
  if (!value.is_string()) {
    fail(ErrorKind::input, "{}: {} must be a string, it is {}", where, in_quotes(key),
         value.type_name());
  }
  return value.get<std::string>();
}

// A list of {"type": "text", "text"} is their text.
std::string joined_parts(const OrderedJson& parts, const std::string& place) {
  std::string text;
  for (const OrderedJson& part : parts) {
    const bool is_text = part.is_object() && part.value("type", OrderedJson()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      fail(ErrorKind::input,
           "{}: \"content\" must be a string, or a list of {{\"type\": \"text\", \"text\"}}",
           place);
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// None at all is one, too: tools of a server's own have a type instead.
bool has_readable_name(const OrderedJson& function) {
  return !function.is_object() || !function.contains("name") || function["name"].is_string();
}

// Templates print arguments as JSON; a string that holds JSON would be quoted once more.
void open_arguments(OrderedJson& call, const std::string& place) {
  OrderedJson* function = &call;
  if (call.is_object() && call.contains("function")) function = &call["function"];
  if (!function->is_object() || !function->contains("name") || !has_readable_name(*function)) {
    fail(ErrorKind::input, "{}: a tool call must be {{\"function\": {{\"name\", \"arguments\"}}}}",
         place);
  }
  if (!function->contains("arguments")) return;
  OrderedJson& arguments = (*function)["arguments"];
  if (arguments.is_string()) {
    arguments = parse_ordered_json(arguments.get<std::string>(), place + ": arguments");
  }
  if (!arguments.is_object()) {
    fail(ErrorKind::input, "{}: the arguments of a tool call must be an object, they are {}", place,
         arguments.type_name());
  }
}

void check_message(OrderedJson& message, const std::string& place) {
  if (!message.is_object()) {
    fail(ErrorKind::input, "{} must be an object, it is {}", place, message.type_name());
  }
  if (!message.contains("role")) fail(ErrorKind::input, "{}: key \"role\" is missing", place);
  const std::string role = string_field(message, "role", place);
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    fail(ErrorKind::input,
         "{}: role {} is not known; expected system, developer, user, assistant or tool", place,
         in_quotes(role));
  }
  if (message.contains("tool_calls") && message["tool_calls"].is_null()) {
    message.erase("tool_calls");
  }
  const bool calls = message.contains("tool_calls");
  if (calls) {
    OrderedJson& list = message["tool_calls"];
    if (role != "assistant" || !list.is_array()) {
      fail(ErrorKind::input, "{}: \"tool_calls\" must be a list, in a message of the assistant",
           place);
    }
    for (OrderedJson& call : list) open_arguments(call, place);
  }
  if (!message.contains("content") || message["content"].is_null()) {
    if (!calls) fail(ErrorKind::input, "{}: key \"content\" is missing", place);
    message["content"] = "";
  } else if (message["content"].is_array()) {
    message["content"] = joined_parts(message["content"], place);
  } else {
    string_field(message, "content", place);
  }
}

Chat read_chat(OrderedJson& object, const std::string& key, const std::string& where) {
  Chat chat{.messages = std::move(object[key])};
  if (!chat.messages.is_array() || chat.messages.empty()) {
    fail(ErrorKind::input, "{}: {} must be a list of at least one message", where, in_quotes(key));
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    check_message(chat.messages[i], fmt::format("{}: message {}", where, i));
  }
  const auto tools = object.find("tools");
  if (tools == object.end() || tools->is_null()) return chat;
  chat.tools = tools->is_string()
                   ? parse_ordered_json(tools->get<std::string>(), where + ": \"tools\"")
                   : std::move(*tools);
  if (!chat.tools.is_array()) {
    fail(ErrorKind::input, "{}: \"tools\" must be a list, it is {}", where, chat.tools.type_name());
  }
  for (const OrderedJson& tool : chat.tools) {
    const bool is_wrapped = tool.is_object() && tool.contains("function");
    if (has_readable_name(is_wrapped ? tool["function"] : tool)) continue;
    fail(ErrorKind::input, "{}: the \"name\" of a tool must be a string", where);
  }
  return chat;
}

}  // namespace

JsonDocument read_json_document(std::string_view line, const JsonKeys& named,
                                const std::string& where) {
  const JsonKeys keys = wanted_keys(named);
  OrderedJson object = parse_ordered_json(line, where);
  if (!object.is_object()) {
    fail(ErrorKind::input, "{}: a JSON {} instead of an object; expected {}, one object per line",
         where, object.type_name(), listed(shapes_of(keys), " or "));
  }
  JsonDocument document{.shape = shape_of(object, keys, where)};
  switch (document.shape) {
    case JsonDocument::Shape::text:
      document.text = string_field(object, keys.text, where);
      break;
    case JsonDocument::Shape::pair:
      document.text = string_field(object, keys.prompt, where);
      document.completion = string_field(object, keys.completion, where);
      break;
    case JsonDocument::Shape::chat:
      document.chat = read_chat(object, keys.messages, where);
      break;
  }
  return document;
}

std::string text_of(const OrderedJson& message) {
  std::string text = message.value("content", "");
  const auto calls = message.find("tool_calls");
  if (calls != message.end()) text += (text.empty() ? "" : "\n") + calls->dump();
  return text;
}

}  // namespace dsmoe::data

// A call in the syntax of the model's family, put together from literals and schemas.
#include "serve/tool_shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dsmoe::serve {
namespace {

using constrain::Shape;
using text::CallBody;
using text::CallSyntax;

std::string schema_name(const Tool& tool) { return "tools[" + tool.name + "].parameters"; }

Shape arguments_of(const Tool& tool) {
  const bool is_any = tool.parameters.is_null() || tool.parameters.empty();
  return is_any ? Shape::any_object() : Shape::schema(tool.parameters, schema_name(tool));
}

Shape optional(Shape shape) { return Shape::any_of({Shape::literal(""), std::move(shape)}); }

// A text as it is, and its end.
Shape text_argument(const OrderedJson& schema, const std::string& end) {
  const auto values = schema.find("enum"), value = schema.find("const");
  if (values == schema.end() && value == schema.end()) return Shape::text_until(end);
  std::vector<Shape> texts;
  for (const OrderedJson& text : value != schema.end() ? OrderedJson::array({*value}) : *values) {
    if (text.is_string()) texts.push_back(Shape::literal(text.get<std::string>() + end));
  }
  return Shape::any_of(std::move(texts));
}

// Texts as they are, all else as JSON. What the tool defines may be referred to in each argument.
Shape pair_of(const CallSyntax& syntax, const Tool& tool, const std::string& key) {
  OrderedJson schema = tool.parameters["properties"][key];
  const std::string end(syntax.value_end);
  std::vector<Shape> parts{
      Shape::literal(std::string(syntax.key_begin) + key + std::string(syntax.key_end))};
  if (is_text_argument(schema)) {
    parts.push_back(text_argument(schema, end));
    return Shape::sequence(std::move(parts));
  }
  for (const char* definitions : {"$defs", "definitions"}) {
    const auto found = tool.parameters.find(definitions);
    if (found != tool.parameters.end() && schema.is_object()) schema[definitions] = *found;
  }
  parts.push_back(Shape::schema(std::move(schema), schema_name(tool) + ".properties." + key));
  parts.push_back(Shape::literal(end));
  return Shape::sequence(std::move(parts));
}

Shape pairs_of(const CallSyntax& syntax, const Tool& tool) {
  std::vector<Shape> parts{Shape::literal(std::string(syntax.name_end))};
  if (!tool.parameters.is_object() || !tool.parameters.contains("properties")) {
    return Shape::sequence(std::move(parts));
  }
  const OrderedJson required = tool.parameters.value("required", OrderedJson::array());
  for (const auto& [key, schema] : tool.parameters["properties"].items()) {
    Shape pair = pair_of(syntax, tool, key);
    const bool is_needed = std::find(required.begin(), required.end(), key) != required.end();
    parts.push_back(is_needed ? std::move(pair) : optional(std::move(pair)));
  }
  return Shape::sequence(std::move(parts));
}

// One call behind `call_begin`.
Shape call_behind_begin(const CallSyntax& syntax, const Tool& tool) {
  const std::string end(syntax.call_end);
  switch (syntax.body) {
    case CallBody::object:
      return Shape::sequence({Shape::literal("\n{\"name\": \"" + tool.name + "\", \"arguments\": "),
                              arguments_of(tool), Shape::literal("}\n" + end)});
    case CallBody::named:
      return Shape::sequence({Shape::literal(tool.name + std::string(syntax.name_end)),
                              arguments_of(tool), Shape::literal(end)});
    case CallBody::key_value:
      return Shape::sequence({Shape::literal(std::string(syntax.name_begin) + tool.name),
                              pairs_of(syntax, tool), Shape::literal(end)});
  }
  return Shape::literal("");
}

// Everything behind the marker by which calls begin.
Shape calls_behind_mark(const CallSyntax& syntax, const ToolUse& tools) {
  std::vector<Shape> calls;
  for (const Tool& tool : tools.callable) calls.push_back(call_behind_begin(syntax, tool));
  const Shape call = Shape::any_of(std::move(calls));
  const std::string begin(syntax.call_begin);
  std::vector<Shape> parts;
  if (!syntax.section_begin.empty()) parts.push_back(Shape::literal(begin));
  parts.push_back(call);
  if (tools.parallel) {
    const Shape next = Shape::sequence({Shape::literal(std::string(syntax.between) + begin), call});
    parts.push_back(optional(Shape::list(next, "")));
  }
  parts.push_back(Shape::literal(std::string(syntax.section_end)));
  return Shape::sequence(std::move(parts));
}

std::string mark_of(const CallSyntax& syntax) {
  return std::string(syntax.section_begin.empty() ? syntax.call_begin : syntax.section_begin);
}

}  // namespace

bool is_text_argument(const OrderedJson& schema) {
  return schema.is_object() && schema.contains("type") && schema["type"] == "string";
}

Shape tool_answer(const CallSyntax& syntax, const ToolUse& tools, std::optional<Shape> instead) {
  const std::string mark = mark_of(syntax);
  const Shape calls = calls_behind_mark(syntax, tools);
  const Shape only_calls = Shape::sequence({Shape::literal(mark), calls});
  if (tools.choice == ToolChoice::required) return only_calls;
  if (instead) return Shape::any_of({*std::move(instead), only_calls});
  return Shape::any_of(
      {Shape::text_without(mark), Shape::sequence({Shape::text_until(mark), calls})});
}

std::string tool_answer_key(const CallSyntax& syntax, const ToolUse& tools) {
  std::string key =
      fmt::format("tools {} {} {}", syntax.name, tools.parallel, static_cast<int>(tools.choice));
  for (const Tool& tool : tools.callable) {
    key += "\n" + tool.name + " " + tool.parameters.dump();
  }
  return key;
}

}  // namespace dsmoe::serve

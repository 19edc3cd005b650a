// OpenAI's response_format, vLLM's guided_* and structured_outputs, llama.cpp's json_schema,
// SGLang's regex.
#include "serve/constraint_field.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/memory_reserve.h"
#include "serve/api_error.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxSchemaBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxChoices = 65536;

// One field, and what there is to say about it.
struct Field {
  const OrderedJson& value;
  std::string name;
};

const char* kind_of(const OrderedJson& value) { return value.type_name(); }

ConstraintSpec schema_spec(const Field& field) {
  OrderedJson schema = field.value;
  if (schema.is_string()) {
    try {
      schema = parse_ordered_json(schema.get_ref<const std::string&>(), field.name, kBodyLimits);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), field.name);
    }
  }
  if (!schema.is_object() && !schema.is_boolean()) {
    refuse(field.name, "{}: expected a JSON schema, an object, got {}", field.name,
           kind_of(schema));
  }
  std::string key = "schema " + schema.dump();
  if (key.size() > kMaxSchemaBytes) {
    refuse(field.name, "{}: the schema has {} bytes, at most {} are possible", field.name,
           key.size(), kMaxSchemaBytes);
  }
  return {constrain::Shape::schema(std::move(schema), field.name), field.name, std::move(key)};
}

ConstraintSpec object_spec(const std::string& name) {
  return {constrain::Shape::any_object(), name, "object"};
}

ConstraintSpec regex_spec(const Field& field) {
  if (!field.value.is_string()) {
    refuse(field.name, "{}: expected a regular expression, a string, got {}", field.name,
           kind_of(field.value));
  }
  const auto pattern = field.value.get<std::string>();
  return {constrain::Shape::regex(pattern, field.name), field.name, "regex " + pattern};
}

ConstraintSpec grammar_spec(const Field& field) {
  if (!field.value.is_string()) {
    refuse(field.name, "{}: expected a grammar in llama.cpp's notation, a string, got {}",
           field.name, kind_of(field.value));
  }
  const auto grammar = field.value.get<std::string>();
  return {constrain::Shape::grammar(grammar, field.name), field.name, "grammar " + grammar};
}

ConstraintSpec choice_spec(const Field& field) {
  const bool is_list = field.value.is_array() && !field.value.empty() &&
                       field.value.size() <= kMaxChoices &&
                       std::all_of(field.value.begin(), field.value.end(),
                                   [](const OrderedJson& text) { return text.is_string(); });
  if (!is_list) {
    refuse(field.name, "{}: expected a list of 1 to {} strings", field.name, kMaxChoices);
  }
  return {constrain::Shape::choice(field.value.get<std::vector<std::string>>(), field.name),
          field.name, "choice " + field.value.dump()};
}

const OrderedJson* find(const OrderedJson& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<ConstraintSpec> format_spec(const Field& field) {
  if (!field.value.is_object()) {
    refuse(field.name, "{}: expected an object, got {}", field.name, kind_of(field.value));
  }
  const OrderedJson* type = find(field.value, "type");
  const std::string kind = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  if (kind == "text" && find(field.value, "schema") == nullptr) return std::nullopt;
  // llama.cpp puts the schema beside the type.
  if (const OrderedJson* schema = find(field.value, "schema");
      schema != nullptr && (kind == "json_object" || kind == "json_schema")) {
    return schema_spec({*schema, field.name + ".schema"});
  }
  if (kind == "json_object") return object_spec(field.name);
  if (kind == "text") refuse(field.name, "{}: a schema beside the type text", field.name);
  if (kind != "json_schema") {
    refuse(field.name + ".type", "{}.type: expected text, json_object or json_schema", field.name);
  }
  const OrderedJson* wrapped = find(field.value, "json_schema");
  const std::string name = field.name + ".json_schema";
  if (wrapped == nullptr || !wrapped->is_object()) {
    refuse(name, "{}: expected an object with name and schema", name);
  }
  const OrderedJson* schema = find(*wrapped, "schema");
  if (schema == nullptr) refuse(name + ".schema", "{}.schema: it is missing", name);
  return schema_spec({*schema, name + ".schema"});
}

// vLLM's newer form.
std::optional<ConstraintSpec> structured_spec(const Field& field) {
  if (!field.value.is_object()) {
    refuse(field.name, "{}: expected an object, got {}", field.name, kind_of(field.value));
  }
  std::optional<ConstraintSpec> spec;
  for (const auto& [key, value] : field.value.items()) {
    const std::string name = field.name + "." + key.substr(0, 80);
    if (value.is_null() || value == OrderedJson(false)) continue;
    if (spec)
      refuse(name, "{}: only one of json, json_object, regex, grammar and choice is possible",
             name);
    if (key == "json") {
      spec = schema_spec({value, name});
    } else if (key == "regex") {
      spec = regex_spec({value, name});
    } else if (key == "grammar") {
      spec = grammar_spec({value, name});
    } else if (key == "choice") {
      spec = choice_spec({value, name});
    } else if (key == "json_object" && value == OrderedJson(true)) {
      spec = object_spec(name);
    } else {
      refuse(name, "{}: not supported here; json, json_object, regex, grammar and choice are",
             name);
    }
  }
  return spec;
}

struct Spelling {
  const char* name;
  std::optional<ConstraintSpec> (*read)(const Field& field);
};
template <ConstraintSpec (*kRead)(const Field&)>
std::optional<ConstraintSpec> always(const Field& field) {
  return kRead(field);
}
constexpr Spelling kSpellings[] = {
    {"response_format", format_spec},        {"guided_json", always<schema_spec>},
    {"guided_regex", always<regex_spec>},    {"guided_choice", always<choice_spec>},
    {"structured_outputs", structured_spec}, {"json_schema", always<schema_spec>},
    {"regex", always<regex_spec>},           {"guided_grammar", always<grammar_spec>},
    {"grammar", always<grammar_spec>},       {"ebnf", always<grammar_spec>},
};

bool has_escaped_ascii(std::string_view body) {
  constexpr std::string_view kEscape = "\\u00";
  for (std::size_t at = 0; (at = body.find(kEscape, at)) != std::string_view::npos;) {
    at += kEscape.size();
    if (at < body.size() && body[at] >= '0' && body[at] <= '7') return true;
  }
  return false;
}

bool asks_for_nothing(const Json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_array() && value.empty());
}

}  // namespace

bool may_have_constraint(std::string_view body) {
  for (const char* name : {"\"tools\"", "\"bad_words\"", "\"banned_strings\""}) {
    if (body.find(name) != std::string_view::npos) return true;
  }
  if (has_escaped_ascii(body)) return true;  // it may be part of a name
  return std::any_of(std::begin(kSpellings), std::end(kSpellings), [&](const Spelling& spelling) {
    return body.find(spelling.name) != std::string_view::npos;
  });
}

std::optional<ConstraintSpec> read_constraint(const Json& body, std::string_view text) {
  std::vector<const Spelling*> asked;
  for (const Spelling& spelling : kSpellings) {
    const Json* value = find_field(body, spelling.name);
    if (value != nullptr && !asks_for_nothing(*value)) asked.push_back(&spelling);
  }
  if (asked.empty()) return std::nullopt;
  const KeepReserve keep;
  JsonOwner owner(parse_ordered_json(text, "request body", kBodyLimits));
  OrderedJson& ordered = *owner;
  std::optional<ConstraintSpec> spec;
  for (const Spelling* spelling : asked) {
    std::optional<ConstraintSpec> next =
        spelling->read({ordered.at(spelling->name), spelling->name});
    if (spec && next) {
      refuse(next->field, "{}: not possible together with {}", next->field, spec->field);
    }
    if (next) spec = std::move(next);
  }
  return spec;
}

}  // namespace dsmoe::serve

// Values as text: Python's str() and repr(), and json.dumps as transformers' tojson calls it.
#include <algorithm>

#include "text/jinja/jinja_value.h"

namespace dsmoe::text::jinja {
namespace {

void append(Run& run, std::string& out, std::string_view text) {
  run.bytes(text.size());
  out += text;
}

// str() of everything that is not a string, a list or a dict.
std::string scalar_text(Run& run, const Value& value) {
  if (is<Undefined>(value)) return "";
  if (is<None>(value)) return "None";
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "True" : "False";
  if (const auto* i = std::get_if<std::int64_t>(&value)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&value)) return python_repr(*d);
  run.fail("cannot print {}", type_name(value));
}

void append_repr(Run& run, std::string& out, const Value& value) {
  if (const auto* text = as_string(value)) {
    run.bytes(4 * text->size());
    append(run, out, python_repr(std::string_view(*text)));
  } else if (is<Undefined>(value)) {
    append(run, out, "Undefined");
  } else {
    append_text(run, out, value);
  }
}

void append_list(Run& run, std::string& out, const List& list) {
  if (list.kind > ListKind::tuple) run.fail("cannot print {}: add | list", kind_name(list.kind));
  const bool tuple = list.kind == ListKind::tuple;
  out += tuple ? '(' : '[';
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(run, out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
}

void append_dict(Run& run, std::string& out, const Dict& dict) {
  out += '{';
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(run, out, dict.entries[i].first);
    out += ": ";
    append_repr(run, out, dict.entries[i].second);
  }
  out += '}';
}

void json_newline(Run& run, std::string& out, const JsonStyle& style, int level) {
  if (!style.multiline) return;
  run.bytes(style.indent.size() * static_cast<std::size_t>(level));
  out += '\n';
  for (int i = 0; i < level; ++i) out += style.indent;
}

void json_list(Run& run, std::string& out, const List& list, const JsonStyle& style, int level) {
  if (list.kind > ListKind::tuple)
    run.fail("tojson cannot write {}: add | list", kind_name(list.kind));
  if (list.items.empty()) {
    append(run, out, "[]");
    return;
  }
  out += '[';
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) append(run, out, style.item_separator);
    json_newline(run, out, style, level + 1);
    append_json(run, out, list.items[i], style, level + 1);
  }
  json_newline(run, out, style, level);
  out += ']';
}

void json_key(Run& run, std::string& out, const std::string& key, const JsonStyle& style) {
  run.bytes(16 * key.size());
  append_json_string(out, key, style.escape);
}

void json_dict(Run& run, std::string& out, const Dict& dict, const JsonStyle& style, int level) {
  if (dict.entries.empty()) {
    append(run, out, "{}");
    return;
  }
  std::vector<const std::pair<StringPtr, Value>*> order;
  for (const auto& entry : dict.entries) order.push_back(&entry);
  if (style.sort_keys) {
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return *a->first < *b->first; });
  }
  out += '{';
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0) append(run, out, style.item_separator);
    json_newline(run, out, style, level + 1);
    json_key(run, out, *order[i]->first, style);
    append(run, out, style.key_separator);
    append_json(run, out, order[i]->second, style, level + 1);
  }
  json_newline(run, out, style, level);
  out += '}';
}

}  // namespace

void append_text(Run& run, std::string& out, const Value& value) {
  run.step();
  if (const auto* text = as_string(value)) {
    append(run, out, *text);
  } else if (const auto* list = std::get_if<ListPtr>(&value)) {
    append_list(run, out, **list);
  } else if (const auto* dict = std::get_if<DictPtr>(&value)) {
    append_dict(run, out, **dict);
  } else {
    append(run, out, scalar_text(run, value));
  }
}

std::string to_text(Run& run, const Value& value) {
  std::string out;
  append_text(run, out, value);
  return out;
}

void append_json(Run& run, std::string& out, const Value& value, const JsonStyle& style,
                 int level) {
  run.step();
  if (const auto* text = as_string(value)) {
    json_key(run, out, *text, style);
  } else if (const auto* list = std::get_if<ListPtr>(&value)) {
    json_list(run, out, **list, style, level);
  } else if (const auto* dict = std::get_if<DictPtr>(&value)) {
    json_dict(run, out, **dict, style, level);
  } else if (is<None>(value)) {
    out += "null";
  } else if (const auto* b = std::get_if<bool>(&value)) {
    out += *b ? "true" : "false";
  } else if (const auto* i = std::get_if<std::int64_t>(&value)) {
    out += std::to_string(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    const std::string text_of = python_repr(*d);
    out += text_of == "nan"    ? "NaN"
           : text_of == "inf"  ? "Infinity"
           : text_of == "-inf" ? "-Infinity"
                               : text_of;
  } else {
    run.fail("tojson cannot write {}", type_name(value));
  }
}

}  // namespace dsmoe::text::jinja

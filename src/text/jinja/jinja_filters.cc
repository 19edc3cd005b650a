// The filters after `|`.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/json.h"
#include "text/jinja/jinja_callables.h"

namespace dsmoe::text::jinja {
namespace {

Value trim(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "trim", args, {"chars"});
  const std::string text = to_text(run, input);
  run.bytes(4 * text.size());
  if (bound[0] == nullptr || is<None>(*bound[0])) return make_string(run, strip(text, Side::both));
  run.bytes(16 * bound.string(0).size() + 8 * text.size());
  return make_string(run, strip(text, Side::both, bound.string(0)));
}

Value length_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "length", args, {});
  return length(run, input);
}

Value string_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "string", args, {});
  return make_string(to_text(run, input));
}

template <LetterCase letter_case>
Value case_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "a filter that changes letter case", args, {});
  return change_case(run, to_text(run, input), letter_case);
}

// Unlike str.title, the filter starts a word only after white space and the characters - ( { [ <.
Value title(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "title", args, {});
  const Value lowered = change_case(run, to_text(run, input), LetterCase::lower);
  std::string out = *as_string(lowered);
  bool starts = true;
  for (char& c : out) {
    if (starts && c >= 'a' && c <= 'z') c = static_cast<char>(c & ~0x20);
    starts = std::string_view("-({[<").find(c) != std::string_view::npos ||
             is_space(static_cast<unsigned char>(c));
  }
  return make_string(std::move(out));
}

Value default_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "default", args, {"default_value", "boolean"});
  const bool absent = is<Undefined>(input) || (bound.flag(1) && !truthy(input));
  return absent ? bound.value_or(0, make_string("")) : input;
}

Value join(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "join", args, {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : to_text(run, *bound[0]);
  const bool by_attribute = bound[1] != nullptr && !is<None>(*bound[1]);
  std::string out;
  bool first = true;
  const ListPtr items = iterate(run, input);
  for (const Value& item : items->items) {
    if (!first) {
      run.bytes(separator.size());
      out += separator;
    }
    append_text(run, out, by_attribute ? lookup_path(run, item, *bound[1]) : item);
    first = false;
  }
  return make_string(std::move(out));
}

Value first(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "first", args, {});
  const ListPtr items = iterate(run, input);
  return items->items.empty() ? Value{Undefined{}} : items->items.front();
}

Value last(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "last", args, {});
  if (as_list(input, ListKind::iterator) != nullptr)
    run.fail("an iterator has no last element: add | list");
  const ListPtr items = iterate(run, input);
  return items->items.empty() ? Value{Undefined{}} : items->items.back();
}

Value list_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "list", args, {});
  return make_list(run, ListKind::list, iterate(run, input)->items);
}

Value reverse(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "reverse", args, {});
  std::vector<Value> items = iterate(run, input)->items;
  std::reverse(items.begin(), items.end());
  if (as_string(input) == nullptr) return make_list(run, ListKind::iterator, std::move(items));
  std::string out;
  for (const Value& item : items) append_text(run, out, item);
  return make_string(std::move(out));
}

Value replace_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs raw(run, "replace", args, {"old", "new", "count"}, 2);
  CallArgs texts;  // the filter turns what it gets into text first
  texts.positional = {make_string(to_text(run, *raw[0])), make_string(to_text(run, *raw[1])),
                      raw.value_or(2, std::int64_t{-1})};
  if (is<None>(texts.positional[2])) texts.positional[2] = std::int64_t{-1};
  const BoundArgs bound(run, "replace", texts, {"old", "new", "count"}, 2);
  return replace_text(run, to_text(run, input), bound);
}

Value items_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "items", args, {});
  std::vector<Value> items;
  if (const auto* dict = std::get_if<DictPtr>(&input)) {
    for (const auto& [key, value] : (*dict)->entries) {
      items.push_back(make_list(run, ListKind::tuple, {key, value}));
    }
  } else if (!is<Undefined>(input)) {
    run.fail("the filter 'items' needs a dict, not {}", type_name(input));
  }
  return make_list(run, ListKind::iterator, std::move(items));
}

Value dictsort(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const auto* dict = std::get_if<DictPtr>(&input);
  if (dict == nullptr) run.fail("the filter 'dictsort' needs a dict, not {}", type_name(input));
  if (bound[1] != nullptr && bound.string(1) != "key")
    run.fail("'dictsort' by value is not supported");
  std::vector<std::pair<std::string, Value>> rows;
  for (const auto& [key, value] : (*dict)->entries) {
    const Value folded = bound.flag(0) ? Value{key} : change_case(run, *key, LetterCase::lower);
    rows.emplace_back(*as_string(folded), make_list(run, ListKind::tuple, {key, value}));
  }
  const bool descending = bound.flag(2);
  run.step(8 * static_cast<std::int64_t>(rows.size()));
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return descending ? b.first < a.first : a.first < b.first;
  });
  std::vector<Value> items;
  for (auto& [key, row] : rows) items.push_back(std::move(row));
  return make_list(run, ListKind::list, std::move(items));
}

// int(): digits with a sign and single underscores; failing that, what float() reads, cut at the
// point.
std::optional<std::int64_t> parse_integer(Run& run, std::string_view raw) {
  std::string_view text = strip(raw, Side::both);
  if (!is_ascii(text)) run.fail("'int' of text beyond ASCII is not supported");
  if (text.find('_') != std::string_view::npos) run.fail("'int' of text with '_' is not supported");
  if (text.starts_with("+") && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t integer = 0;
  const char* const end = text.data() + text.size();
  const auto whole = std::from_chars(text.data(), end, integer);
  if (whole.ptr == end && !text.empty()) {
    if (whole.ec != std::errc{}) run.fail("'int' of a number beyond 64 bits is not supported");
    return integer;
  }
  double value = 0;
  const auto real = std::from_chars(text.data(), end, value);
  if (real.ec != std::errc{} || real.ptr != end || !std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 9.2e18) run.fail("'int' of a number beyond 64 bits is not supported");
  return static_cast<std::int64_t>(value);
}

Value int_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "int", args, {"default", "base"});
  if (bound.integer_or(1, 10) != 10) run.fail("'int' with a base other than 10 is not supported");
  if (is<Undefined>(input)) run.fail("'int' of an undefined value");
  if (is<std::int64_t>(input)) return input;
  if (const auto* b = std::get_if<bool>(&input)) return std::int64_t{*b ? 1 : 0};
  if (const auto* d = std::get_if<double>(&input)) {
    if (!(std::abs(*d) < 9.2e18)) run.fail("'int' of a number beyond 64 bits is not supported");
    return static_cast<std::int64_t>(*d);
  }
  const std::string* text = as_string(input);
  if (text != nullptr) run.bytes(text->size());
  const auto parsed = text == nullptr ? std::nullopt : parse_integer(run, *text);
  return parsed ? Value{*parsed} : bound.value_or(0, std::int64_t{0});
}

Value indent(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "indent", args, {"width", "first", "blank"});
  const std::string* text = as_string(input);
  if (text == nullptr) run.fail("the filter 'indent' needs a string, not {}", type_name(input));
  std::string margin;
  if (bound[0] != nullptr && as_string(*bound[0]) != nullptr) {
    margin = bound.string(0);
  } else {
    const std::int64_t width = std::max<std::int64_t>(bound.integer_or(0, 4), 0);
    run.bytes(static_cast<std::size_t>(width));
    margin.assign(static_cast<std::size_t>(width), ' ');
  }
  run.bytes(8 * text->size());
  const std::string padded = *text + "\n";  // so that a final empty line counts
  std::string out = bound.flag(1) ? margin : "";
  bool first_line = true;
  for (const std::string_view line : split_lines(padded)) {
    run.bytes(margin.size() + line.size());
    if (!first_line) out += '\n';
    if (!first_line && (bound.flag(2) || !line.empty())) out += margin;
    out += line;
    first_line = false;
  }
  return make_string(std::move(out));
}

Value tojson(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  if (bound.flag(0)) style.escape = JsonEscape::non_ascii;
  style.sort_keys = bound.flag(3);
  if (bound[1] != nullptr && !is<None>(*bound[1])) {
    style.multiline = true;
    style.item_separator.resize(1);  // ","
    if (as_string(*bound[1]) != nullptr) {
      style.indent = bound.string(1);
    } else {
      const std::int64_t width = std::max<std::int64_t>(bound.integer_or(1, 0), 0);
      run.bytes(static_cast<std::size_t>(width));
      style.indent.assign(static_cast<std::size_t>(width), ' ');
    }
  }
  if (bound[2] != nullptr && !is<None>(*bound[2])) {
    const ListPtr pair = iterate(run, *bound[2]);
    if (pair->items.size() != 2 || !as_string(pair->items[0]) || !as_string(pair->items[1])) {
      run.fail("the argument 'separators' of 'tojson' must be two strings");
    }
    style.item_separator = *as_string(pair->items[0]);
    style.key_separator = *as_string(pair->items[1]);
  }
  std::string out;
  append_json(run, out, input, style);
  return make_string(std::move(out));
}

// Text -> value, as Python's json.loads; no filter of jinja2's own.
Value from_json_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "from_json", args, {});
  const std::string* text = as_string(input);
  if (text == nullptr) run.fail("the filter 'from_json' needs a string, not {}", type_name(input));
  run.bytes(64 * text->size());
  OrderedJson json;
  try {
    json = parse_ordered_json(*text, "from_json", {.max_depth = kMaxValueDepth});
  } catch (const Error&) {
    run.fail("the filter 'from_json' got what is no JSON");
  }
  std::int64_t size = 0;
  Value value = from_json(run, json, size);
  run.step(size);
  return value;
}

// map, select and their kin take anything false, none and 0 included, for an empty list.
ListPtr elements(Run& run, const Value& input) {
  return iterate(run, truthy(input) ? input : Value{Undefined{}});
}

Value map(Run& run, const Value& input, const CallArgs& args) {
  std::vector<Value> items;
  const ListPtr inputs = elements(run, input);
  if (args.positional.empty()) {
    const BoundArgs bound(run, "map", args, {"attribute", "default"}, 1);
    for (const Value& item : inputs->items) {
      items.push_back(lookup_path(run, item, *bound[0], bound[1]));
    }
    return make_list(run, ListKind::iterator, std::move(items));
  }
  const std::string* name = as_string(args.positional[0]);
  const Filter* filter = name == nullptr ? nullptr : find_filter(*name);
  if (filter == nullptr)
    run.fail("the filter '{}' is not supported", name == nullptr ? "?" : *name);
  // A string is made of strings, so map('map', 'map', ...) would recurse without end.
  if (filter->apply == &map) run.fail("'map' inside 'map' is not supported");
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin());
  run.step(static_cast<std::int64_t>(inputs->items.size()));
  for (const Value& item : inputs->items) items.push_back(filter->apply(run, item, rest));
  return make_list(run, ListKind::iterator, std::move(items));
}

enum class Keep { matching, others };
enum class Subject { item, attribute };

// select, reject, selectattr, rejectattr: [attribute,] [test, arguments of the test ...]
template <Keep keep, Subject subject>
Value choose(Run& run, const Value& input, const CallArgs& args) {
  CallArgs rest = args;
  Value path;
  if (subject == Subject::attribute) {
    if (rest.positional.empty()) run.fail("'selectattr' and 'rejectattr' need an attribute");
    path = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  const Test* test = nullptr;
  if (!rest.positional.empty()) {
    const std::string* name = as_string(rest.positional[0]);
    test = name == nullptr ? nullptr : find_test(*name);
    if (test == nullptr) run.fail("the test '{}' is not supported", name == nullptr ? "?" : *name);
    rest.positional.erase(rest.positional.begin());
  }
  std::vector<Value> items;
  const ListPtr inputs = elements(run, input);
  run.step(static_cast<std::int64_t>(inputs->items.size()));
  for (const Value& item : inputs->items) {
    const Value value = subject == Subject::attribute ? lookup_path(run, item, path) : item;
    const bool holds = test == nullptr ? truthy(value) : test->holds(run, value, rest);
    if (holds == (keep == Keep::matching)) items.push_back(item);
  }
  return make_list(run, ListKind::iterator, std::move(items));
}

// Text marked as safe changes how later operators escape; the parser drops it where it cannot
// matter.
Value safe(Run& run, const Value&, const CallArgs&) {
  run.fail("the filter 'safe' is supported only as the last step of {{{{ ... }}}}");
}

constexpr std::array kFilters = {
    Filter{"trim", trim},
    Filter{"length", length_filter},
    Filter{"count", length_filter},
    Filter{"string", string_filter},
    Filter{"upper", case_filter<LetterCase::upper>},
    Filter{"lower", case_filter<LetterCase::lower>},
    Filter{"capitalize", case_filter<LetterCase::capitalize>},
    Filter{"title", title},
    Filter{"default", default_filter},
    Filter{"d", default_filter},
    Filter{"join", join},
    Filter{"first", first},
    Filter{"last", last},
    Filter{"list", list_filter},
    Filter{"reverse", reverse},
    Filter{"replace", replace_filter},
    Filter{"items", items_filter},
    Filter{"dictsort", dictsort},
    Filter{"int", int_filter},
    Filter{"indent", indent},
    Filter{"tojson", tojson},
    Filter{"map", map},
    Filter{"select", choose<Keep::matching, Subject::item>},
    Filter{"reject", choose<Keep::others, Subject::item>},
    Filter{"selectattr", choose<Keep::matching, Subject::attribute>},
    Filter{"rejectattr", choose<Keep::others, Subject::attribute>},
    Filter{"safe", safe},
    Filter{"sort", sort_filter},
    Filter{"unique", unique_filter},
    Filter{"min", min_filter},
    Filter{"max", max_filter},
    Filter{"from_json", from_json_filter},
    Filter{"fromjson", from_json_filter},
};

}  // namespace

Value lookup_path(Run& run, Value object, const Value& path, const Value* otherwise) {
  const auto step = [&](const Value& key) {
    object = get_item(run, object, key);
    if (otherwise != nullptr && is<Undefined>(object)) object = *otherwise;
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string* text = as_string(path);
  if (text == nullptr) {
    step(path);
    return object;
  }
  for (const std::string_view part : split_at(*text, ".", -1, Side::left)) {
    const bool index =
        !part.empty() && part.size() < 10 && std::all_of(part.begin(), part.end(), is_digit);
    step(index ? Value{static_cast<std::int64_t>(std::stoll(std::string(part)))}
               : make_string(run, part));
  }
  return object;
}

const Filter* find_filter(std::string_view name) {
  for (const Filter& filter : kFilters) {
    if (filter.name == name) return &filter;
  }
  return nullptr;
}

}  // namespace dsmoe::text::jinja

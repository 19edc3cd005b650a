// Keywords to rules, one schema inside the other.
#include "constrain/json_schema.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "constrain/json_text.h"
#include "constrain/regex_pattern.h"
#include "constrain/schema_numbers.h"
#include "constrain/schema_overlap.h"
#include "constrain/schema_parts.h"
#include "constrain/string_format.h"

namespace dsmoe::constrain {
namespace {

constexpr uint32_t kMaxCount = 1'000'000;  // of minItems, maxLength and their like
constexpr int kMaxDepth = 64;

// What says nothing about values.
const Names kRemarks{"title",    "description", "default",    "examples",     "example",
                     "$schema",  "$id",         "$comment",   "$defs",        "definitions",
                     "readOnly", "writeOnly",   "deprecated", "discriminator"};
const Names kObjectWords{"properties", "required", "additionalProperties"};
const Names kArrayWords{"items", "minItems", "maxItems"};
const Names kStringWords{"minLength", "maxLength", "pattern", "format"};

// Only these, besides remarks: what stands beside them would have to hold too.
void allow_only(const At& at, const Names& names) {
  for (const auto& [key, value] : at.json.items()) {
    if (contains(kRemarks, key) || contains(names, key)) continue;
    const bool is_known = key == "type" || key == "enum" || key == "const" || key == "anyOf" ||
                          key == "oneOf" || key == "allOf" || key == "$ref" ||
                          contains(kObjectWords, key) || contains(kArrayWords, key) ||
                          contains(kStringWords, key) || contains(kNumberWords, key);
    refuse(below(at.path, key), is_known ? fmt::format("not supported beside {}", names.front())
                                         : "this keyword of JSON Schema is not supported");
  }
}

std::optional<uint32_t> count_of(const At& at, const char* key) {
  const auto found = at.json.find(key);
  if (found == at.json.end()) return std::nullopt;
  const double value = found->is_number() ? found->get<double>() : -1;
  if (value < 0 || value != static_cast<double>(static_cast<int64_t>(std::min(value, 1e15)))) {
    refuse(below(at.path, key), "expected a count, an integer from 0");
  }
  if (value > kMaxCount) {
    refuse(below(at.path, key), fmt::format("at most {} are possible", kMaxCount));
  }
  return static_cast<uint32_t>(value);
}

Bounds bounds_of(const At& at, const char* least, const char* most) {
  const Bounds bounds{count_of(at, least).value_or(0), count_of(at, most).value_or(kNoMost)};
  if (bounds.least > bounds.most) {
    refuse(below(at.path, least), fmt::format("it is larger than {}", most));
  }
  return bounds;
}

class SchemaWriter {
 public:
  SchemaWriter(Nfa& nfa, const OrderedJson& root, const std::string& name)
      : nfa_(nfa), root_(root), name_(name), text_(nfa), overlap_(root) {}

  // The whole schema, and what it refers to.
  void write_all(int32_t from, int32_t to) {
    write(from, {root_, name_}, to);
    while (!referred_.empty()) {
      const Referred next = std::move(referred_.back());
      referred_.pop_back();
      const Nfa::Rule rule = nfa_.rules()[static_cast<std::size_t>(next.rule)];
      write(rule.start, {*next.schema, next.place}, rule.end);
    }
  }

 private:
  struct Referred {
    int32_t rule;
    const OrderedJson* schema;
    std::string place;
  };

  void write(int32_t from, const At& at, int32_t to) {
    if (++depth_ > kMaxDepth) refuse(at.path, fmt::format("nested deeper than {}", kMaxDepth));
    nfa_.set_place(at.path);
    if (at.json.is_boolean()) {
      if (at.json.get<bool>()) text_.add_value(from, to);
    } else if (!at.json.is_object()) {
      refuse(at.path, "expected a schema, an object");
    } else if (at.json.contains("$ref")) {
      write_reference(from, at, to);
    } else if (at.json.contains("anyOf")) {
      write_any_of(from, at, to);
    } else if (at.json.contains("oneOf")) {
      write_one_of(from, at, to);
    } else if (at.json.contains("allOf")) {
      write_all_of(from, at, to);
    } else if (at.json.contains("enum") || at.json.contains("const")) {
      write_values(from, at, to);
    } else {
      write_types(from, at, to);
    }
    --depth_;
  }

  void write_reference(int32_t from, const At& at, int32_t to) {
    allow_only(at, {"$ref"});
    const std::string path = below(at.path, "$ref");
    const OrderedJson& target = referred(root_, at.json.at("$ref"), path);
    const std::string& text = at.json.at("$ref").get_ref<const std::string&>();
    const auto [known, is_new] = references_.try_emplace(text, 0);
    if (is_new) {
      std::string place = name_ + text.substr(1, 200);
      std::replace(place.begin(), place.end(), '/', '.');
      nfa_.set_place(place);
      known->second = nfa_.add_rule();
      nfa_.set_place(at.path);
      referred_.push_back({known->second, &target, std::move(place)});
    }
    nfa_.add_call(from, {.rule = references_.at(text)}, to);
  }

  void write_any_of(int32_t from, const At& at, int32_t to) {
    allow_only(at, {"anyOf"});
    const std::string path = below(at.path, "anyOf");
    write_alternatives(from, {at.json.at("anyOf"), path}, to);
  }

  void write_alternatives(int32_t from, const At& all, int32_t to) {
    if (!all.json.is_array() || all.json.empty()) refuse(all.path, "expected a list of schemas");
    for (std::size_t i = 0; i < all.json.size(); ++i) {
      write(from, {all.json[i], below(all.path, std::to_string(i))}, to);
    }
  }

  // The same as anyOf where no value is of two of them.
  void write_one_of(int32_t from, const At& at, int32_t to) {
    allow_only(at, {"oneOf"});
    const std::string path = below(at.path, "oneOf");
    const OrderedJson& all = at.json.at("oneOf");
    write_alternatives(from, {all, path}, to);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap_.are_apart({all[j], path}, {all[i], path})) continue;
        refuse(path, fmt::format("a value might be of {} and of {}, which oneOf forbids; let their "
                                 "types differ, or the const of a required property, or use anyOf",
                                 j, i));
      }
    }
  }

  // Of one schema: how some generators put remarks beside a reference.
  void write_all_of(int32_t from, const At& at, int32_t to) {
    allow_only(at, {"allOf"});
    const std::string path = below(at.path, "allOf");
    const OrderedJson& all = at.json.at("allOf");
    if (!all.is_array() || all.size() != 1) refuse(path, "supported with one schema in it only");
    write(from, {all[0], below(path, "0")}, to);
  }

  void write_values(int32_t from, const At& at, int32_t to) {
    allow_only(at, {at.json.contains("enum") ? "enum" : "const", "type"});
    const std::vector<std::string> types = types_of(at);
    const OrderedJson list =
        at.json.contains("enum") ? at.json.at("enum") : OrderedJson::array({at.json.at("const")});
    if (!list.is_array() || list.empty()) {
      refuse(below(at.path, "enum"), "expected a list of values");
    }
    for (const OrderedJson& value : list) {
      const bool fits = types.empty() || std::any_of(types.begin(), types.end(), [&](auto& type) {
                          return is_of_type(value, type);
                        });
      if (fits) nfa_.add_literal(from, value.dump(), to);
    }
  }

  void write_types(int32_t from, const At& at, int32_t to) {
    Names allowed{"type"};
    for (const Names* words : {&kObjectWords, &kArrayWords, &kStringWords, &kNumberWords}) {
      allowed.insert(allowed.end(), words->begin(), words->end());
    }
    allow_only(at, allowed);
    std::vector<std::string> types = types_of(at);
    if (types.empty()) {
      const auto has = [&](const Names& words) {
        return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
          return at.json.contains(std::string(word));
        });
      };
      // Whatever the words do not speak of would be allowed; what they speak of is meant.
      if (has(kObjectWords)) types.push_back("object");
      if (has(kArrayWords)) types.push_back("array");
      if (has(kStringWords)) types.push_back("string");
      if (has(kNumberWords)) types.push_back("number");
      if (types.empty()) return text_.add_value(from, to);
    }
    for (const std::string& type : types) write_type(type, from, at, to);
  }

  void write_type(const std::string& type, int32_t from, const At& at, int32_t to) {
    if (type == "null") {
      nfa_.add_literal(from, "null", to);
    } else if (type == "boolean") {
      nfa_.add_literal(from, "true", to);
      nfa_.add_literal(from, "false", to);
    } else if (type == "string") {
      write_string(from, at, to);
    } else if (type == "array") {
      write_array(from, at, to);
    } else if (type == "object") {
      write_object(from, at, to);
    } else {
      write_number(type == "integer", from, at, to);
    }
  }

  void write_number(bool is_integer, int32_t from, const At& at, int32_t to) {
    const NumberBounds bounds = number_bounds_of(at, is_integer);
    if (bounds.any()) {
      const int digits = bounds.multiple_of ? bounds.multiple_of->digits : kFractionDigits;
      add_number_range(nfa_, from, bounds, is_integer ? 0 : digits, to);
    } else if (is_integer) {
      text_.add_integer(from, to);
    } else {
      text_.add_number(from, to);
    }
  }

  void write_string(int32_t from, const At& at, int32_t to) {
    const Bounds bounds = bounds_of(at, "minLength", "maxLength");
    const bool has_pattern = at.json.contains("pattern"), has_format = at.json.contains("format");
    if (!has_pattern && !has_format) return text_.add_string(from, bounds, to);
    const char* word = has_pattern ? "pattern" : "format";
    const std::string path = below(at.path, word);
    if (has_pattern && has_format) refuse(path, "not supported together with format");
    if (bounds != Bounds{}) refuse(path, "not supported together with minLength or maxLength");
    const OrderedJson& value = at.json.at(word);
    if (!value.is_string()) refuse(path, "expected a string");
    std::string pattern = value.get<std::string>();
    if (has_format) {
      const char* known = pattern_of_format(pattern);
      if (known == nullptr) {
        refuse(path, fmt::format("{} is not supported; these are: {}", in_quotes(pattern),
                                 known_formats()));
      }
      pattern = known;
    }
    const int32_t open = nfa_.add_node(), close = nfa_.add_node();
    nfa_.add_literal(from, "\"", open);
    RegexPattern(pattern, path)
        .write(nfa_, open,
               {.ends = has_format ? RegexPattern::Ends::whole : RegexPattern::Ends::anywhere,
                .written = RegexPattern::Written::in_json},
               close);
    nfa_.add_literal(close, "\"", to);
  }

  void write_array(int32_t from, const At& at, int32_t to) {
    const Bounds bounds = bounds_of(at, "minItems", "maxItems");
    const int32_t open = nfa_.add_node(), end = nfa_.add_node();
    nfa_.add_literal(from, "[", open);
    nfa_.add_literal(end, "]", to);
    if (bounds.least == 0) nfa_.add_empty(open, end);
    if (bounds.most == 0) return;
    const int32_t item = item_rule(at);
    const int32_t first = nfa_.add_node(), behind = nfa_.add_node(), close = nfa_.add_node();
    text_.add_space(open, first);
    nfa_.add_call(first, {.rule = item}, behind);
    text_.add_space(close, end);
    if (bounds.least <= 1 && bounds.most == kNoMost) {
      const int32_t comma = nfa_.add_node();
      nfa_.add_empty(behind, close);
      nfa_.add_literal(behind, ",", comma);
      text_.add_space(comma, first);
      return;
    }
    // The second item and those that follow, with what stands before each.
    const int32_t more = nfa_.add_counted_rule();
    const int32_t start = nfa_.rules()[static_cast<std::size_t>(more)].start;
    const int32_t comma = nfa_.add_node(), next = nfa_.add_node();
    nfa_.add_literal(start, ",", comma);
    text_.add_space(comma, next);
    nfa_.add_call(next, {.rule = item}, start);
    const Bounds rest{std::max(bounds.least, 1u) - 1,
                      bounds.most == kNoMost ? kNoMost : bounds.most - 1};
    nfa_.add_call(behind, {.rule = more, .bounds = rest}, close);
  }

  int32_t item_rule(const At& at) {
    const int32_t rule = nfa_.add_rule();
    const Nfa::Rule made = nfa_.rules()[static_cast<std::size_t>(rule)];
    const auto items = at.json.find("items");
    if (items == at.json.end()) {
      text_.add_value(made.start, made.end);
    } else {
      write(made.start, {*items, below(at.path, "items")}, made.end);
      nfa_.set_place(at.path);
    }
    return rule;
  }

  std::set<std::string> required_of(const At& at) const {
    const auto found = at.json.find("required");
    if (found == at.json.end()) return {};
    std::set<std::string> names;
    if (!found->is_array()) refuse(below(at.path, "required"), "expected a list of names");
    for (const OrderedJson& name : *found) {
      if (!name.is_string()) refuse(below(at.path, "required"), "expected a list of names");
      names.insert(name.get<std::string>());
    }
    return names;
  }

  void write_object(int32_t from, const At& at, int32_t to) {
    const OrderedJson none = OrderedJson::object();
    const auto found = at.json.find("properties");
    const OrderedJson& properties = found == at.json.end() ? none : *found;
    const std::string path = below(at.path, "properties");
    if (!properties.is_object()) refuse(path, "expected an object from names to schemas");
    std::set<std::string> required = required_of(at);
    const auto more = at.json.find("additionalProperties");
    // Members that nothing is said about are written only where nothing is said about any.
    const bool is_open = more == at.json.end() ? properties.empty() && required.empty()
                                               : *more != OrderedJson(false);
    if (properties.empty() && required.empty() &&
        (more == at.json.end() || *more == OrderedJson(true))) {
      return text_.add_object(from, to);
    }
    const int32_t open = nfa_.add_node(), end = nfa_.add_node(), close = nfa_.add_node();
    nfa_.add_literal(from, "{", open);
    text_.add_space(close, end);
    nfa_.add_literal(end, "}", to);
    // Before the first member, and behind one.
    int32_t first = nfa_.add_node(), behind = nfa_.add_node();
    const int32_t at_first = first;
    std::vector<std::string> names;
    bool may_be_empty = true;
    for (const auto& [name, schema] : properties.items()) {
      const bool is_required = required.erase(name) > 0;
      may_be_empty = may_be_empty && !is_required;
      const int32_t key = nfa_.add_node(), colon = nfa_.add_node(), space = nfa_.add_node();
      const int32_t value = nfa_.add_node(), next_first = nfa_.add_node();
      const int32_t next_behind = nfa_.add_node(), comma = nfa_.add_node();
      if (first >= 0) nfa_.add_empty(first, key);
      nfa_.add_literal(behind, ",", comma);
      text_.add_space(comma, key);
      nfa_.add_literal(key, OrderedJson(name).dump(), colon);
      nfa_.add_literal(colon, ":", space);
      text_.add_space(space, value);
      write(value, {schema, below(path, name)}, next_behind);
      nfa_.set_place(at.path);
      if (!is_required) {
        if (first >= 0) nfa_.add_empty(first, next_first);
        nfa_.add_empty(behind, next_behind);
      }
      first = next_first;
      behind = next_behind;
      names.push_back(name);
    }
    if (!required.empty()) {
      refuse(below(at.path, "required"),
             fmt::format("{} is required and not in properties", in_quotes(*required.begin())));
    }
    if (is_open) {
      const OrderedJson any = true;
      write_additional(
          first, behind, names,
          {more == at.json.end() ? any : *more, below(at.path, "additionalProperties")});
      nfa_.set_place(at.path);
    }
    text_.add_space(open, at_first);
    if (may_be_empty) nfa_.add_literal(open, "}", to);
    nfa_.add_empty(behind, close);
  }

  // Members with other names, from `first` or `behind` to `behind`. Their names have no escapes: an
  // escape could spell one of the others.
  void write_additional(int32_t first, int32_t behind, const std::vector<std::string>& names,
                        const At& at) {
    const int32_t key = nfa_.add_node(), comma = nfa_.add_node(), colon = nfa_.add_node();
    const int32_t space = nfa_.add_node(), value = nfa_.add_node();
    nfa_.add_empty(first, key);
    nfa_.add_literal(behind, ",", comma);
    text_.add_space(comma, key);
    if (names.empty()) {
      text_.add_string(key, {}, colon);
    } else {
      write_other_name(key, names, colon);
    }
    nfa_.add_literal(colon, ":", space);
    text_.add_space(space, value);
    write(value, at, behind);
  }

  // A trie of the names; where a text leaves it, it may go on freely.
  void write_other_name(int32_t from, const std::vector<std::string>& names, int32_t to) {
    const int32_t open = nfa_.add_node(), close = nfa_.add_node(), free = nfa_.add_node();
    nfa_.add_literal(from, "\"", open);
    nfa_.add_literal(close, "\"", to);
    static constexpr CodePoints kPlain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    nfa_.add_characters(free, kPlain, free);
    nfa_.add_empty(free, close);
    std::map<std::string, int32_t> nodes{{"", open}};  // by what was written
    const std::set<std::string> whole(names.begin(), names.end());
    std::size_t num_bytes = 0;
    for (const std::string& name : names) {
      num_bytes += name.size();
      if (name.size() > 256 || num_bytes > (std::size_t{1} << 16)) {
        refuse(nfa_.place(),
               "beside additionalProperties a name has at most 256 bytes, all of them "
               "together 65536");
      }
      for (std::size_t at = 0; at < name.size();) {
        next_code_point(name, at);
        const auto [node, is_new] = nodes.try_emplace(name.substr(0, at), 0);
        if (is_new) node->second = nfa_.add_node();
      }
    }
    for (const auto& [prefix, node] : nodes) {
      if (!whole.contains(prefix)) nfa_.add_empty(node, close);
      std::vector<CodePoints> others(std::begin(kPlain), std::end(kPlain));
      for (auto next = nodes.upper_bound(prefix);
           next != nodes.end() && next->first.starts_with(prefix); ++next) {
        std::size_t at = prefix.size();
        const uint32_t c = next_code_point(next->first, at);
        if (at != next->first.size()) continue;
        nfa_.add_characters(node, std::array{CodePoints{c, c}}, next->second);
        exclude(others, c);
      }
      nfa_.add_characters(node, others, free);
    }
  }

  static void exclude(std::vector<CodePoints>& ranges, uint32_t c) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const CodePoints range = ranges[i];
      if (c < range.low || c > range.high) continue;
      ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(i));
      if (c > range.low) ranges.push_back({range.low, c - 1});
      if (c < range.high) ranges.push_back({c + 1, range.high});
      return;
    }
  }

  Nfa& nfa_;
  const OrderedJson& root_;
  const std::string& name_;
  JsonText text_;
  SchemaOverlap overlap_;
  std::map<std::string, int32_t> references_;  // rules
  std::vector<Referred> referred_;             // and still to be written
  int depth_ = 0;
};

}  // namespace

void add_schema(Nfa& nfa, int32_t from, const OrderedJson& schema, const std::string& name,
                int32_t to) {
  const std::string outer = nfa.place();
  SchemaWriter(nfa, schema, name).write_all(from, to);
  nfa.set_place(outer);
}

}  // namespace dsmoe::constrain

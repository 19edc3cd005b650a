// Matching arguments to parameters, and Jinja's attribute and item lookup.
#include "text/jinja/jinja_callables.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/utf8.h"

namespace dsmoe::text::jinja {
namespace {

constexpr std::array<std::string_view, 11> kDictAttributes = {
    "clear", "copy",    "fromkeys",   "get",    "items", "keys",
    "pop",   "popitem", "setdefault", "update", "values"};

constexpr std::array<std::string_view, 47> kStringAttributes = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};

// Of lists, tuples, ranges, dict views and numbers.
constexpr std::array<std::string_view, 28> kOtherAttributes = {"append",     "clear",
                                                               "copy",       "count",
                                                               "extend",     "index",
                                                               "insert",     "pop",
                                                               "remove",     "reverse",
                                                               "sort",       "start",
                                                               "stop",       "step",
                                                               "isdisjoint", "mapping",
                                                               "real",       "imag",
                                                               "numerator",  "denominator",
                                                               "conjugate",  "bit_length",
                                                               "bit_count",  "to_bytes",
                                                               "from_bytes", "as_integer_ratio",
                                                               "is_integer", "hex"};

template <std::size_t N>
bool in_table(const std::array<std::string_view, N>& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto& items = loop.sequence->items;
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto size = static_cast<std::int64_t>(items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return std::int64_t{1};
  if (name == "depth0") return std::int64_t{0};
  if (name == "previtem") return index == 0 ? Value{Undefined{}} : items[loop.index - 1];
  if (name == "nextitem") return index + 1 == size ? Value{Undefined{}} : items[loop.index + 1];
  return Undefined{};
}

[[noreturn]] void refuse_method_value(Run& run, std::string_view name) {
  run.fail("the method '{}' without a call is not supported", name);
}

// Python finds its own attributes before it looks for keys, or after it found none.
void refuse_python_attribute(Run& run, const Value& object, std::string_view name) {
  const bool known = is<DictPtr>(object)            ? in_table(kDictAttributes, name)
                     : as_string(object) != nullptr ? in_table(kStringAttributes, name)
                     : is<None>(object)             ? false
                                                    : in_table(kOtherAttributes, name);
  if (known) refuse_method_value(run, name);
}

// Attributes of objects whose attributes are not items.
std::optional<Value> own_attribute(Run& run, const Value& object, const std::string& name) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) {
    if (undefined->name != nullptr)
      run.fail("'{}' is undefined: it has no '{}'", *undefined->name, name);
    run.fail("an undefined value has no '{}'", name);
  }
  if (const auto* loop = std::get_if<Loop*>(&object)) {
    if (name == "cycle" || name == "changed") refuse_method_value(run, name);
    return loop_attribute(**loop, name);
  }
  if (const auto* space = std::get_if<Namespace*>(&object)) {
    const auto hit = (*space)->attributes.find(name);
    return hit == (*space)->attributes.end() ? Value{Undefined{}} : hit->second;
  }
  if (is<Callable>(object)) run.fail("the attribute '{}' of a function is not supported", name);
  return std::nullopt;
}

std::optional<std::int64_t> as_index(const Value& key) {
  if (const auto* i = std::get_if<std::int64_t>(&key)) return *i;
  if (const auto* b = std::get_if<bool>(&key)) return *b ? 1 : 0;
  return std::nullopt;
}

Value string_item(Run& run, const std::string& text, std::int64_t index) {
  run.bytes(2 * text.size());
  const auto size = static_cast<std::int64_t>(count_code_points(text));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{};
  std::size_t pos = 0;
  for (std::int64_t i = 0; i < index; ++i) next_code_point(text, pos);
  const std::size_t start = pos;
  next_code_point(text, pos);
  return make_string(text.substr(start, pos - start));
}

Value list_item(Run& run, const List& list, std::int64_t index) {
  if (list.kind >= ListKind::view)
    run.fail("{} cannot be indexed: add | list", kind_name(list.kind));
  const auto size = static_cast<std::int64_t>(list.items.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{};
  return list.items[static_cast<std::size_t>(index)];
}

}  // namespace

BoundArgs::BoundArgs(Run& run, std::string_view callee, const CallArgs& args,
                     std::initializer_list<std::string_view> names, std::size_t required)
    : run_(run), callee_(callee), names_(names), bound_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    run.fail("'{}' takes at most {} arguments, {} given", callee, names_.size(),
             args.positional.size());
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) bound_[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const auto hit = std::find(names_.begin(), names_.end(), name);
    if (hit == names_.end()) run.fail("'{}' has no argument '{}'", callee, name);
    const Value*& slot = bound_[static_cast<std::size_t>(hit - names_.begin())];
    if (slot != nullptr) run.fail("the argument '{}' of '{}' is given twice", name, callee);
    slot = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound_[i] == nullptr) run.fail("'{}' needs its argument '{}'", callee, names_[i]);
  }
}

Value BoundArgs::value_or(std::size_t i, Value otherwise) const {
  return bound_[i] == nullptr ? std::move(otherwise) : *bound_[i];
}

std::int64_t BoundArgs::integer_or(std::size_t i, std::int64_t otherwise) const {
  if (bound_[i] == nullptr) return otherwise;
  const auto value = as_index(*bound_[i]);
  if (!value) {
    run_.fail("the argument '{}' of '{}' must be an integer, not {}", names_[i], callee_,
              type_name(*bound_[i]));
  }
  return *value;
}

const std::string& BoundArgs::string(std::size_t i) const {
  const std::string* text = bound_[i] == nullptr ? nullptr : as_string(*bound_[i]);
  if (text == nullptr) {
    run_.fail("the argument '{}' of '{}' must be a string, not {}", names_[i], callee_,
              bound_[i] == nullptr ? "absent" : type_name(*bound_[i]));
  }
  return *text;
}

Value get_attribute(Run& run, const Value& object, const std::string& name) {
  if (auto own = own_attribute(run, object, name)) return std::move(*own);
  refuse_python_attribute(run, object, name);
  const auto* dict = std::get_if<DictPtr>(&object);
  const Value* value = dict == nullptr ? nullptr : (*dict)->find(name);
  return value == nullptr ? Value{Undefined{}} : *value;
}

Value get_item(Run& run, const Value& object, const Value& key) {
  const std::string* name = as_string(key);
  static const std::string kOther = "item";
  if (auto own = own_attribute(run, object, name == nullptr ? kOther : *name)) {
    return name == nullptr ? Value{Undefined{}} : std::move(*own);
  }
  if (name != nullptr) {
    run.bytes(name->size());
    const auto* dict = std::get_if<DictPtr>(&object);
    const Value* value = dict == nullptr ? nullptr : (*dict)->find(*name);
    if (value != nullptr) return *value;
    refuse_python_attribute(run, object, *name);
    return Undefined{};
  }
  const auto index = as_index(key);
  const auto* list = std::get_if<ListPtr>(&object);
  if (index && as_string(object) != nullptr) return string_item(run, *as_string(object), *index);
  if (index && list != nullptr) return list_item(run, **list, *index);
  return Undefined{};
}

}  // namespace dsmoe::text::jinja

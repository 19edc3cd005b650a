// Python's rules for truth, equality, order, membership and iteration.
#include "text/jinja/jinja_value.h"
#include "base/json.h"
#include "base/utf8.h"

#include <algorithm>
#include <array>

namespace dsmoe::text::jinja {
namespace {

int depth_of(const Value& value) {
  if (const auto* list = std::get_if<ListPtr>(&value)) return (*list)->depth;
  if (const auto* dict = std::get_if<DictPtr>(&value)) return (*dict)->depth;
  return 0;
}

void check_depth(Run& run, int depth) {
  if (depth > kMaxValueDepth) {
    run.fail("lists and dicts nested deeper than {} levels", kMaxValueDepth);
  }
}

// long double holds every int64 and every double exactly on x86-64, so mixed comparisons are exact.
const long double* as_number(const Value& value, long double& storage) {
  if (const auto* b = std::get_if<bool>(&value))
    storage = *b ? 1 : 0;
  else if (const auto* i = std::get_if<std::int64_t>(&value))
    storage = static_cast<long double>(*i);
  else if (const auto* d = std::get_if<double>(&value))
    storage = *d;
  else
    return nullptr;
  return &storage;
}

[[noreturn]] void refuse_compare(Run& run, const Value& a, const Value& b) {
  run.fail("cannot compare {} with {}", type_name(a), type_name(b));
}

bool equal_lists(Run& run, const List& a, const List& b) {
  const bool comparable = a.kind <= ListKind::tuple && b.kind <= ListKind::tuple;
  if (!comparable) run.fail("== of ranges, dict views and iterators is not supported: add | list");
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(run, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Run& run, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(*key);
    if (other == nullptr || !equal(run, value, *other)) return false;
  }
  return true;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  const auto hit = index.find(key);
  return hit == index.end() ? nullptr : &entries[hit->second].second;
}

void Dict::set(StringPtr key, Value value) {
  const auto [slot, inserted] = index.try_emplace(*key, entries.size());
  depth = std::max(depth, 1 + depth_of(value));
  if (inserted) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    entries[slot->second].second = std::move(value);
  }
}

Value make_string(Run& run, std::string_view text) {
  run.step();  // two allocations
  run.bytes(text.size());
  return make_string(std::string(text));
}

Value make_list(Run& run, ListKind kind, std::vector<Value> items) {
  run.step(1 + static_cast<std::int64_t>(items.size()));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  check_depth(run, depth + 1);
  return std::make_shared<const List>(
      List{.kind = kind, .depth = depth + 1, .items = std::move(items)});
}

Value make_dict(Run& run, Dict dict) {
  run.step(1 + 2 * static_cast<std::int64_t>(dict.entries.size()));
  check_depth(run, dict.depth);
  return std::make_shared<const Dict>(std::move(dict));
}

Value from_json(Run& run, const nlohmann::ordered_json& json, std::int64_t& size, int depth) {
  check_depth(run, depth);
  const auto text = [&](const std::string& raw) {
    if (!is_valid_utf8(raw)) run.fail("the chat input holds a string that is not valid UTF-8");
    size += static_cast<std::int64_t>(raw.size() / 64);
    return std::make_shared<const std::string>(raw);
  };
  ++size;
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return text(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) run.fail("the chat input holds {}: integers need 64 bits", number);
      return static_cast<std::int64_t>(number);
    }
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& item : json) {
        list.items.push_back(from_json(run, item, size, depth + 1));
        list.depth = std::max(list.depth, 1 + depth_of(list.items.back()));
      }
      return std::make_shared<const List>(std::move(list));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        dict.set(text(key), from_json(run, value, size, depth + 1));
      }
      return std::make_shared<const Dict>(std::move(dict));
    }
    default:
      return None{};
  }
}

std::string_view kind_name(ListKind kind) {
  static constexpr std::array<std::string_view, 5> kNames = {"a list", "a tuple", "a range",
                                                             "a dict view", "an iterator"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, std::variant_size_v<Value>> kNames = {
      "undefined", "none",   "a boolean",   "an integer", "a float",   "a string",
      "a list",    "a dict", "a namespace", "a loop",     "a function"};
  if (const auto* list = std::get_if<ListPtr>(&value)) return kind_name((*list)->kind);
  return kNames[value.index()];
}

const ListPtr* as_list(const Value& value, ListKind kind) {
  const auto* list = std::get_if<ListPtr>(&value);
  return list != nullptr && (*list)->kind == kind ? list : nullptr;
}

const std::string* as_string(const Value& value) {
  const auto* text = std::get_if<StringPtr>(&value);
  return text == nullptr ? nullptr : text->get();
}

bool truthy(const Value& value) {
  switch (value.index()) {
    case 0:
    case 1:
      return false;
    case 2:
      return std::get<bool>(value);
    case 3:
      return std::get<std::int64_t>(value) != 0;
    case 4:
      return std::get<double>(value) != 0;
    case 5:
      return !std::get<StringPtr>(value)->empty();
    case 6: {
      const List& list = *std::get<ListPtr>(value);
      return list.kind == ListKind::iterator || !list.items.empty();
    }
    case 7:
      return !std::get<DictPtr>(value)->entries.empty();
    default:
      return true;
  }
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.step();
  long double x = 0;
  long double y = 0;
  if (as_number(a, x) != nullptr && as_number(b, y) != nullptr) return x == y;
  if (a.index() != b.index()) return false;
  if (const auto* text = as_string(a)) {
    run.bytes(text->size());
    return *text == *as_string(b);
  }
  if (const auto* list = std::get_if<ListPtr>(&a)) {
    return equal_lists(run, **list, *std::get<ListPtr>(b));
  }
  if (const auto* dict = std::get_if<DictPtr>(&a)) {
    return equal_dicts(run, **dict, *std::get<DictPtr>(b));
  }
  if (const auto* ns = std::get_if<Namespace*>(&a)) return *ns == std::get<Namespace*>(b);
  if (is<Loop*>(a) || is<Callable>(a)) refuse_compare(run, a, b);
  return true;  // undefined == undefined, none == none
}

int compare(Run& run, const Value& a, const Value& b) {
  run.step();
  long double x = 0;
  long double y = 0;
  if (as_number(a, x) != nullptr && as_number(b, y) != nullptr) {
    if (x != x || y != y) run.fail("cannot order nan");
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const std::string* s = as_string(a);
  const std::string* t = as_string(b);
  if (s == nullptr || t == nullptr) refuse_compare(run, a, b);
  run.bytes(std::min(s->size(), t->size()));
  return s->compare(*t);  // byte order of UTF-8 is code point order
}

bool contains(Run& run, const Value& container, const Value& item) {
  run.step();
  if (is<Undefined>(container)) return false;
  if (const auto* text = as_string(container)) {
    const std::string* needle = as_string(item);
    if (needle == nullptr) run.fail("'in' of a string needs a string, not {}", type_name(item));
    run.search(text->size(), needle->size());
    return text->find(*needle) != std::string::npos;
  }
  if (const auto* list = std::get_if<ListPtr>(&container)) {
    const auto same = [&](const Value& element) { return equal(run, element, item); };
    return std::any_of((*list)->items.begin(), (*list)->items.end(), same);
  }
  if (const auto* dict = std::get_if<DictPtr>(&container)) {
    if (is<ListPtr>(item) || is<DictPtr>(item)) run.fail("{} is never a dict key", type_name(item));
    const std::string* key = as_string(item);
    if (key != nullptr) run.bytes(key->size());
    return key != nullptr && (*dict)->find(*key) != nullptr;
  }
  run.fail("'in' needs a string, list or dict on its right, not {}", type_name(container));
}

ListPtr iterate(Run& run, const Value& value) {
  if (const auto* list = std::get_if<ListPtr>(&value)) return *list;
  std::vector<Value> items;
  if (const auto* text = as_string(value)) {
    run.step(2 * static_cast<std::int64_t>(text->size()));
    for (std::size_t pos = 0; pos < text->size();) {
      const std::size_t start = pos;
      next_code_point(*text, pos);
      items.push_back(make_string(text->substr(start, pos - start)));
    }
  } else if (const auto* dict = std::get_if<DictPtr>(&value)) {
    for (const auto& [key, unused] : (*dict)->entries) items.emplace_back(key);
  } else if (!is<Undefined>(value)) {
    run.fail("cannot loop over {}", type_name(value));
  }
  return std::get<ListPtr>(make_list(run, ListKind::list, std::move(items)));
}

std::int64_t length(Run& run, const Value& value) {
  if (is<Undefined>(value)) return 0;
  if (const auto* text = as_string(value)) {
    run.bytes(text->size());
    return static_cast<std::int64_t>(count_code_points(*text));
  }
  if (const auto* dict = std::get_if<DictPtr>(&value)) {
    return static_cast<std::int64_t>((*dict)->entries.size());
  }
  const auto* list = std::get_if<ListPtr>(&value);
  if (list == nullptr || (*list)->kind == ListKind::iterator) {
    run.fail("{} has no length", type_name(value));
  }
  return static_cast<std::int64_t>((*list)->items.size());
}

}  // namespace dsmoe::text::jinja

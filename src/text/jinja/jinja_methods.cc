// Methods of strings and dicts.
#include <algorithm>
#include <array>

#include "text/jinja/jinja_callables.h"

namespace dsmoe::text::jinja {
namespace {

const std::string& text_of(const Value& self) { return *std::get<StringPtr>(self); }
const Dict& dict_of(const Value& self) { return *std::get<DictPtr>(self); }

template <Side side>
Value strip_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "strip", args, {"chars"});
  const std::string& text = text_of(self);
  run.bytes(4 * text.size());
  if (bound[0] == nullptr || is<None>(*bound[0])) return make_string(run, strip(text, side));
  const std::string& chars = bound.string(0);
  run.bytes(16 * chars.size() + 8 * text.size());
  return make_string(run, strip(text, side, chars));
}

template <LetterCase letter_case>
Value case_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "a method that changes letter case", args, {});
  return change_case(run, text_of(self), letter_case);
}

Value strings(Run& run, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(make_string(run, part));
  return make_list(run, ListKind::list, std::move(items));
}

template <Side from>
Value split_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, from == Side::left ? "split" : "rsplit", args, {"sep", "maxsplit"});
  const std::string& text = text_of(self);
  const std::int64_t max_splits = bound.integer_or(1, -1);
  if (bound[0] == nullptr || is<None>(*bound[0])) {
    if (from == Side::right && max_splits >= 0) {
      run.fail("'rsplit' with a limit needs a separator here");
    }
    run.bytes(8 * text.size());
    return strings(run, split_white_space(text, max_splits));
  }
  const std::string& separator = bound.string(0);
  if (separator.empty()) run.fail("the separator of 'split' is empty");
  run.search(text.size(), separator.size());
  run.step(static_cast<std::int64_t>(text.size() / separator.size() / 4));
  return strings(run, split_at(text, separator, max_splits, from));
}

Value splitlines_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "splitlines", args, {});
  run.bytes(8 * text_of(self).size());
  return strings(run, split_lines(text_of(self)));
}

// The argument is one string or a tuple of them.
template <Side side>
Value affix_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, side == Side::left ? "startswith" : "endswith", args, {"affix"}, 1);
  const auto matches = [&](const Value& affix) {
    const std::string* expected = as_string(affix);
    if (expected == nullptr)
      run.fail("a prefix or suffix must be a string, not {}", type_name(affix));
    run.bytes(expected->size());
    const std::string_view text = text_of(self);
    return side == Side::left ? text.starts_with(*expected) : text.ends_with(*expected);
  };
  if (const ListPtr* several = as_list(*bound[0], ListKind::tuple)) {
    return std::any_of((*several)->items.begin(), (*several)->items.end(), matches);
  }
  return matches(*bound[0]);
}

template <Side side>
Value remove_affix_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, side == Side::left ? "removeprefix" : "removesuffix", args, {"affix"},
                        1);
  const std::string& affix = bound.string(0);
  std::string_view text = text_of(self);
  if (side == Side::left && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (side == Side::right && text.ends_with(affix)) text.remove_suffix(affix.size());
  return make_string(run, text);
}

Value replace_method(Run& run, const Value& self, const CallArgs& args) {
  return replace_text(run, text_of(self),
                      BoundArgs(run, "replace", args, {"old", "new", "count"}, 2));
}

Value find_method_of_string(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "find", args, {"sub"}, 1);
  const std::string& text = text_of(self);
  run.search(text.size(), bound.string(0).size());
  const std::size_t hit = text.find(bound.string(0));
  if (hit == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(count_code_points(std::string_view(text).substr(0, hit)));
}

Value count_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "count", args, {"sub"}, 1);
  const std::string& text = text_of(self);
  const std::string& sub = bound.string(0);
  if (sub.empty()) return static_cast<std::int64_t>(count_code_points(text)) + 1;
  run.search(text.size(), sub.size());
  run.step(static_cast<std::int64_t>(text.size() / sub.size() / 4));
  return static_cast<std::int64_t>(split_at(text, sub, -1, Side::left).size()) - 1;
}

Value join_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  const ListPtr items = iterate(run, *bound[0]);
  for (const Value& item : items->items) {
    if (as_string(item) == nullptr) run.fail("'join' needs strings, not {}", type_name(item));
    if (!first) append_text(run, out, self);
    append_text(run, out, item);
    first = false;
  }
  return make_string(std::move(out));
}

Value get_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "get", args, {"key", "default"}, 1);
  const std::string* key = as_string(*bound[0]);
  if (is<ListPtr>(*bound[0]) || is<DictPtr>(*bound[0])) {
    run.fail("{} is never a dict key", type_name(*bound[0]));
  }
  if (key != nullptr) run.bytes(key->size());
  const Value* hit = key == nullptr ? nullptr : dict_of(self).find(*key);
  return hit != nullptr ? *hit : bound.value_or(1, None{});
}

enum class DictPart { keys, values, items };
template <DictPart part>
Value view_method(Run& run, const Value& self, const CallArgs& args) {
  const BoundArgs bound(run, "a dict view", args, {});
  std::vector<Value> items;
  for (const auto& [key, value] : dict_of(self).entries) {
    if (part == DictPart::keys) items.emplace_back(key);
    if (part == DictPart::values) items.push_back(value);
    if (part == DictPart::items) items.push_back(make_list(run, ListKind::tuple, {key, value}));
  }
  return make_list(run, ListKind::view, std::move(items));
}

// '{}'.format(x): fields that are empty, a number or a name; no conversions, no widths.
Value format_method(Run& run, const Value& self, const CallArgs& args) {
  const std::string& text = text_of(self);
  run.bytes(text.size());
  std::string out;
  std::size_t next = 0;
  const auto value_of = [&](const std::string& field) -> const Value& {
    for (const auto& [name, value] : args.keyword) {
      if (name == field) return value;
    }
    const bool is_number =
        !field.empty() && field.size() < 6 &&
        std::all_of(field.begin(), field.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!field.empty() && !is_number) run.fail("'format' has no value for '{}'", field);
    const std::size_t index = field.empty() ? next++ : static_cast<std::size_t>(std::stoi(field));
    if (index >= args.positional.size()) run.fail("'format' has no value for place {}", index);
    return args.positional[index];
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_brace = text[i] == '{' || text[i] == '}';
    if (!is_brace || (i + 1 < text.size() && text[i + 1] == text[i])) {
      out += text[i];
      if (is_brace) ++i;
      continue;
    }
    const std::size_t end = text.find('}', i);
    if (text[i] == '}' || end == std::string::npos) run.fail("'format' of a single brace");
    const std::string field = text.substr(i + 1, end - i - 1);
    if (field.find_first_of(":!.[{") != std::string::npos) {
      run.fail("'format' with '{{{}}}' is not supported", field);
    }
    append_text(run, out, value_of(field));
    i = end;
  }
  return make_string(std::move(out));
}

constexpr std::array kMethods = {
    Method{"strip", Receiver::string, strip_method<Side::both>},
    Method{"lstrip", Receiver::string, strip_method<Side::left>},
    Method{"rstrip", Receiver::string, strip_method<Side::right>},
    Method{"split", Receiver::string, split_method<Side::left>},
    Method{"rsplit", Receiver::string, split_method<Side::right>},
    Method{"splitlines", Receiver::string, splitlines_method},
    Method{"startswith", Receiver::string, affix_method<Side::left>},
    Method{"endswith", Receiver::string, affix_method<Side::right>},
    Method{"removeprefix", Receiver::string, remove_affix_method<Side::left>},
    Method{"removesuffix", Receiver::string, remove_affix_method<Side::right>},
    Method{"upper", Receiver::string, case_method<LetterCase::upper>},
    Method{"lower", Receiver::string, case_method<LetterCase::lower>},
    Method{"title", Receiver::string, case_method<LetterCase::title>},
    Method{"capitalize", Receiver::string, case_method<LetterCase::capitalize>},
    Method{"replace", Receiver::string, replace_method},
    Method{"find", Receiver::string, find_method_of_string},
    Method{"count", Receiver::string, count_method},
    Method{"join", Receiver::string, join_method},
    Method{"format", Receiver::string, format_method},
    Method{"items", Receiver::dict, view_method<DictPart::items>},
    Method{"keys", Receiver::dict, view_method<DictPart::keys>},
    Method{"values", Receiver::dict, view_method<DictPart::values>},
    Method{"get", Receiver::dict, get_method},
};

}  // namespace

Value change_case(Run& run, const std::string& text, LetterCase letter_case) {
  if (!is_ascii(text)) run.fail("changing the letter case of text beyond ASCII is not supported");
  run.bytes(4 * text.size());
  std::string out = text;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  bool starts = true;  // the next letter starts a word
  for (char& c : out) {
    const bool letter = is_letter(c);
    const bool raise =
        letter_case == LetterCase::upper || (letter_case != LetterCase::lower && starts);
    if (letter) c = static_cast<char>(raise ? c & ~0x20 : c | 0x20);
    starts = letter_case == LetterCase::title && !letter;
  }
  return make_string(std::move(out));
}

Value replace_text(Run& run, const std::string& text, const BoundArgs& args) {
  const std::string& old_text = args.string(0);
  const std::string& new_text = args.string(1);
  const std::int64_t count = args.integer_or(2, -1);
  run.search(text.size(), old_text.size());
  std::size_t hits = text.size() + 1;
  if (!old_text.empty()) {
    hits = 0;
    for (std::size_t pos = text.find(old_text); pos != std::string::npos;
         pos = text.find(old_text, pos + old_text.size())) {
      ++hits;
    }
  }
  if (count >= 0) hits = std::min(hits, static_cast<std::size_t>(count));
  run.step(static_cast<std::int64_t>(hits / 4));
  // Both factors are sizes of text in memory, bounded by the budget: no overflow.
  run.bytes(text.size() + hits * new_text.size());
  return make_string(replace(text, old_text, new_text, count));
}

const Method* find_method(std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace dsmoe::text::jinja

// The filters, tests and methods a template may name: tables with one row each.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/jinja_value.h"

namespace dsmoe::text::jinja {

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> keyword;
};

struct Filter {
  std::string_view name;
  Value (*apply)(Run&, const Value& input, const CallArgs&);
};

struct Test {
  std::string_view name;
  bool (*holds)(Run&, const Value& input, const CallArgs&);
};

enum class Receiver { string, dict };
struct Method {
  std::string_view name;
  Receiver receiver;
  Value (*call)(Run&, const Value& self, const CallArgs&);
};

// nullptr: not supported.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
const Method* find_method(std::string_view name);

// Arguments matched to parameter names; absent ones are nullptr.
class BoundArgs {
 public:
  // Fails when there are more arguments than names, an unknown keyword, or fewer than `required`.
  BoundArgs(Run& run, std::string_view callee, const CallArgs& args,
            std::initializer_list<std::string_view> names, std::size_t required = 0);

  const Value* operator[](std::size_t i) const { return bound_[i]; }
  // The value of parameter i, or what stands for its absence.
  Value value_or(std::size_t i, Value otherwise) const;
  std::int64_t integer_or(std::size_t i, std::int64_t otherwise) const;
  const std::string& string(std::size_t i) const;  // fails when absent or of another type
  bool flag(std::size_t i) const { return bound_[i] != nullptr && truthy(*bound_[i]); }

 private:
  Run& run_;
  std::string_view callee_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> bound_;
};

// x.name / x[key] with Jinja's rules: what is missing is undefined.
Value get_attribute(Run& run, const Value& object, const std::string& name);
Value get_item(Run& run, const Value& object, const Value& key);

// "a.b.0": looked up step by step, numbers as indices. `otherwise`, if given, stands for each step
// that leads nowhere.
Value lookup_path(Run& run, Value object, const Value& path, const Value* otherwise = nullptr);

// Filters that compare elements.
Value sort_filter(Run& run, const Value& input, const CallArgs& args);
Value unique_filter(Run& run, const Value& input, const CallArgs& args);
Value min_filter(Run& run, const Value& input, const CallArgs& args);
Value max_filter(Run& run, const Value& input, const CallArgs& args);

// Exist both as a filter and as a method.
Value replace_text(Run& run, const std::string& text, const BoundArgs& args);
enum class LetterCase { upper, lower, capitalize, title };
// Letters beyond ASCII need Unicode tables that dsmoe does not carry: refused, never wrong.
Value change_case(Run& run, const std::string& text, LetterCase letter_case);

}  // namespace dsmoe::text::jinja

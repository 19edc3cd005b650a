// What an answer may look like, put together from parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "constrain/nfa.h"

namespace dsmoe::constrain {

// A value. Parts that are wrong or too large are refused when it is written: by the constructor of
// Constraint. `name` is what a message calls the part ("response_format.json_schema.schema").
class Shape {
 public:
  static Shape literal(std::string text);
  // A value of the schema, as JSON text.
  static Shape schema(OrderedJson schema, std::string name);
  static Shape any_object();  // any JSON object
  // The whole text matches the regular expression.
  static Shape regex(std::string pattern, std::string name);
  // Everything that the grammar's root may be; llama.cpp's notation.
  static Shape grammar(std::string text, std::string name);
  static Shape choice(std::vector<std::string> texts, std::string name);
  static Shape sequence(std::vector<Shape> parts);
  static Shape any_of(std::vector<Shape> alternatives);
  // One or more, with `separator` between them.
  static Shape list(Shape item, std::string separator);
  // Any text up to and with the first `mark`.
  static Shape text_until(std::string mark);
  // Any text without `mark`, perhaps none.
  static Shape text_without(std::string mark);

  // Adds it to the rules, between two nodes.
  void write(Nfa& nfa, int32_t from, int32_t to) const { write_(nfa, from, to); }
  const std::string& name() const { return name_; }

 private:
  using Write = std::function<void(Nfa&, int32_t from, int32_t to)>;
  explicit Shape(Write write, std::string name = "the constraint")
      : write_(std::move(write)), name_(std::move(name)) {}

  Write write_;
  std::string name_;
};

}  // namespace dsmoe::constrain

// Parts as rules.
#include "constrain/shape.h"

#include <memory>

#include "base/error.h"
#include "constrain/grammar.h"
#include "constrain/json_schema.h"
#include "constrain/json_text.h"
#include "constrain/regex_pattern.h"

namespace dsmoe::constrain {
namespace {

// The longest beginning of `mark` that ends its first i bytes and `byte`.
std::size_t matched_with(const std::string& mark, std::size_t matched, uint8_t byte) {
  const std::string seen = mark.substr(0, matched) + static_cast<char>(byte);
  std::size_t length = seen.size();
  while (!mark.starts_with(std::string_view(seen).substr(seen.size() - length))) --length;
  return length;
}

// Nodes for 0 to all but one bytes of the mark matched; the last byte leads to `found`, -1:
// nowhere.
std::vector<int32_t> add_search(Nfa& nfa, const std::string& mark, int32_t found) {
  DSMOE_CHECK(!mark.empty() && mark.size() <= 256, "a mark of {} bytes", mark.size());
  std::vector<int32_t> nodes;
  for (std::size_t i = 0; i < mark.size(); ++i) nodes.push_back(nfa.add_node());
  for (std::size_t i = 0; i < mark.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::size_t next = matched_with(mark, i, static_cast<uint8_t>(byte));
      const int32_t target = next == mark.size() ? found : nodes[next];
      if (target < 0) continue;
      nfa.add_bytes(nodes[i], static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), target);
    }
  }
  return nodes;
}

}  // namespace

Shape Shape::literal(std::string text) {
  return Shape([text = std::move(text)](Nfa& nfa, int32_t from, int32_t to) {
    nfa.add_literal(from, text, to);
  });
}

Shape Shape::schema(OrderedJson schema, std::string name) {
  return Shape(
      [schema = std::make_shared<JsonOwner<OrderedJson>>(std::move(schema)), name](
          Nfa& nfa, int32_t from, int32_t to) { add_schema(nfa, from, **schema, name, to); },
      name);
}

Shape Shape::any_object() {
  return Shape([](Nfa& nfa, int32_t from, int32_t to) { JsonText(nfa).add_object(from, to); });
}

Shape Shape::regex(std::string pattern, std::string name) {
  return Shape(
      [pattern = std::move(pattern), name](Nfa& nfa, int32_t from, int32_t to) {
        RegexPattern(pattern, name).write(nfa, from, {}, to);
      },
      name);
}

Shape Shape::grammar(std::string text, std::string name) {
  return Shape([text = std::move(text), name](
                   Nfa& nfa, int32_t from, int32_t to) { add_grammar(nfa, from, text, name, to); },
               name);
}

Shape Shape::choice(std::vector<std::string> texts, std::string name) {
  return Shape(
      [texts = std::move(texts), name](Nfa& nfa, int32_t from, int32_t to) {
        const std::string outer = nfa.place();
        nfa.set_place(name);
        for (const std::string& text : texts) nfa.add_literal(from, text, to);
        nfa.set_place(outer);
      },
      name);
}

Shape Shape::sequence(std::vector<Shape> parts) {
  return Shape([parts = std::move(parts)](Nfa& nfa, int32_t from, int32_t to) {
    for (const Shape& part : parts) {
      const int32_t next = nfa.add_node();
      part.write(nfa, from, next);
      from = next;
    }
    nfa.add_empty(from, to);
  });
}

Shape Shape::any_of(std::vector<Shape> alternatives) {
  return Shape([all = std::move(alternatives)](Nfa& nfa, int32_t from, int32_t to) {
    for (const Shape& one : all) one.write(nfa, from, to);
  });
}

Shape Shape::list(Shape item, std::string separator) {
  return Shape([item = std::move(item), separator = std::move(separator)](Nfa& nfa, int32_t from,
                                                                          int32_t to) {
    const int32_t start = nfa.add_node(), end = nfa.add_node();
    nfa.add_empty(from, start);
    item.write(nfa, start, end);
    nfa.add_literal(end, separator, start);
    nfa.add_empty(end, to);
  });
}

Shape Shape::text_until(std::string mark) {
  return Shape([mark = std::move(mark)](Nfa& nfa, int32_t from, int32_t to) {
    nfa.add_empty(from, add_search(nfa, mark, to).front());
  });
}

Shape Shape::text_without(std::string mark) {
  return Shape([mark = std::move(mark)](Nfa& nfa, int32_t from, int32_t to) {
    const std::vector<int32_t> nodes = add_search(nfa, mark, -1);
    nfa.add_empty(from, nodes.front());
    for (const int32_t node : nodes) nfa.add_empty(node, to);
  });
}

}  // namespace dsmoe::constrain

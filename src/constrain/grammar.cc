// Text -> items, items -> rules.
#include "constrain/grammar.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "constrain/code_point_set.h"

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 18;
constexpr int kMaxDepth = 64;
constexpr uint32_t kMaxTimes = 4096;
constexpr double kMaxSize = 1 << 17;  // of a rule, its repetitions written out

struct Item {
  enum class Kind { literal, characters, rule, sequence, alternatives, repeat };
  Kind kind = Kind::sequence;
  std::string text = {};  // of a literal, or a rule's name
  CodePointSet characters = {};
  std::vector<Item> children = {};
  Bounds times = {};
  double size = 1;
};
using Kind = Item::Kind;
using Rules = std::map<std::string, Item, std::less<>>;

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GrammarParser {
 public:
  GrammarParser(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text.size() > kMaxBytes) {
      fail(ErrorKind::input, "{}: the grammar has {} bytes, at most {} are possible", name,
           text.size(), kMaxBytes);
    }
    if (!is_valid_utf8(text)) fail(ErrorKind::input, "{}: the grammar is not valid UTF-8", name);
  }

  Rules parse() {
    Rules rules;
    skip(Lines::across);
    while (!at_end()) {
      const std::string name = word();
      if (name.empty()) refuse("expected the name of a rule");
      skip(Lines::across);
      if (!take("::=")) refuse("expected ::= behind the name of a rule");
      skip(Lines::across);
      Item body = alternatives(0, Lines::within);
      if (!at_end() && !sees("\n") && !sees("\r")) refuse("expected the end of the rule");
      if (!rules.emplace(name, std::move(body)).second) refuse("the rule " + name + " comes twice");
      skip(Lines::across);
    }
    if (!rules.contains("root")) refuse("there is no rule named root");
    for (const auto& [used, place] : used_) {
      if (rules.contains(used)) continue;
      at_ = place;
      refuse("there is no rule named " + used);
    }
    return rules;
  }

 private:
  enum class Lines { within, across };

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::input, "{}: line {}: {}", name_, line(), what);
  }
  std::size_t line() const {
    return 1 + static_cast<std::size_t>(std::count(
                   text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
  }

  bool at_end() const { return at_ == text_.size(); }
  bool sees(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool take(std::string_view next) {
    if (!sees(next)) return false;
    at_ += next.size();
    return true;
  }
  uint32_t next() {
    if (at_end() || text_[at_] == '\n') refuse("a quote or a class without its end");
    return next_code_point(text_, at_);
  }

  // White space and comments.
  void skip(Lines lines) {
    for (; !at_end(); ++at_) {
      const char c = text_[at_];
      const bool is_end = c == '\n' || c == '\r';
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        --at_;
      } else if (c != ' ' && c != '\t' && !(is_end && lines == Lines::across)) {
        return;
      }
    }
  }

  std::string word() {
    const std::size_t begin = at_;
    while (!at_end() && is_name_byte(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Item alternatives(int depth, Lines lines) {
    if (depth > kMaxDepth) refuse(fmt::format("groups nested deeper than {}", kMaxDepth));
    Item all{.kind = Kind::alternatives, .size = 0};
    do {
      skip(Lines::across);
      add(all, sequence(depth, lines));
    } while (take_bar());
    return all.children.size() == 1 ? Item(std::move(all.children[0])) : all;
  }

  // It may stand at the beginning of the next line.
  bool take_bar() {
    const std::size_t here = at_;
    skip(Lines::across);
    if (take("|")) return true;
    at_ = here;
    return false;
  }

  Item sequence(int depth, Lines lines) {
    Item all{.kind = Kind::sequence};
    for (;;) {
      skip(lines);
      std::optional<Item> item = atom(depth);
      if (!item) return all;
      repeat(*item, lines);
      add(all, std::move(*item));
    }
  }

  void add(Item& to, Item item) {
    to.size += item.size;
    if (to.size > kMaxSize) refuse("too large with its repetitions written out");
    to.children.push_back(std::move(item));
  }

  // Nothing where none begins.
  std::optional<Item> atom(int depth) {
    if (take("\"")) return literal();
    if (take("[")) return characters();
    if (take(".")) {
      return Item{.kind = Kind::characters, .characters = {{0, kLastCodePoint}}, .size = 2};
    }
    if (take("(")) {
      Item inner = alternatives(depth + 1, Lines::across);
      if (!take(")")) refuse("a ( without its )");
      return inner;
    }
    if (sees("<") || sees("!")) refuse("tokens by name or id are not supported in a grammar");
    const std::size_t begin = at_;
    std::string name = word();
    if (name.empty()) return std::nullopt;
    // A name with ::= behind it begins the next rule.
    const std::size_t end = at_;
    skip(Lines::within);
    const bool is_rule = sees("::=");
    at_ = is_rule ? begin : end;
    if (is_rule)
      refuse("a ::= inside of a rule; every rule needs something behind its own, and a line");
    used_.try_emplace(name, begin);
    return Item{.kind = Kind::rule, .text = std::move(name)};
  }

  Item literal() {
    Item item{.kind = Kind::literal};
    while (!take("\"")) append_utf8(item.text, character());
    item.size = 1 + static_cast<double>(item.text.size());
    return item;
  }

  Item characters() {
    const bool negated = take("^");
    CodePointSet set;
    while (!take("]")) {
      const uint32_t low = character();
      uint32_t high = low;
      if (sees("-") && !sees("-]")) {
        take("-");
        high = character();
      }
      if (low > high) refuse("a range that ends before it begins");
      set.push_back({low, high});
    }
    set = negated ? complement(std::move(set)) : normalised(std::move(set));
    if (set.empty()) refuse("a class without a character");
    const auto size = static_cast<double>(2 * set.size());
    return {.kind = Kind::characters, .characters = std::move(set), .size = size};
  }

  // One of a literal or a class, with its escape.
  uint32_t character() {
    const uint32_t c = next();
    if (c != '\\') return c;
    const uint32_t letter = next();
    switch (letter) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return letter;
    }
    refuse("this escape is not supported");
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (; digits > 0; --digits) {
      const uint32_t c = next(), letter = c | 0x20;
      const bool is_digit = c >= '0' && c <= '9';
      if (!is_digit && !(letter >= 'a' && letter <= 'f')) refuse("expected a hexadecimal digit");
      value = value * 16 + (is_digit ? c - '0' : letter - 'a' + 10);
    }
    if (value > kLastCodePoint || (value >= 0xd800 && value <= 0xdfff)) {
      refuse("this is no character");
    }
    return value;
  }

  void repeat(Item& item, Lines lines) {
    const std::optional<Bounds> times = quantifier();
    if (!times) return;
    const double copies = times->most == kNoMost ? times->least + 1 : times->most;
    Item whole{.kind = Kind::repeat, .times = *times, .size = 1 + item.size * copies};
    if (whole.size > kMaxSize) refuse("too large with its repetitions written out");
    whole.children.push_back(std::move(item));
    item = std::move(whole);
    skip(lines);
    if (sees("*") || sees("+") || sees("?") || sees("{")) refuse("a repetition of a repetition");
  }

  std::optional<Bounds> quantifier() {
    if (take("*")) return Bounds{0, kNoMost};
    if (take("+")) return Bounds{1, kNoMost};
    if (take("?")) return Bounds{0, 1};
    if (!take("{")) return std::nullopt;
    Bounds bounds;
    bounds.least = bounds.most = count().value_or(0);
    if (take(",")) bounds.most = count().value_or(kNoMost);
    if (!take("}")) refuse("expected a repetition {m}, {m,} or {m,n}");
    if (bounds.least > bounds.most) {
      refuse(fmt::format("a repetition of {} to {} times", bounds.least, bounds.most));
    }
    return bounds;
  }

  std::optional<uint32_t> count() {
    skip(Lines::within);
    const std::size_t begin = at_;
    uint32_t value = 0;
    for (; !at_end() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(text_[at_] - '0');
      if (value > kMaxTimes) refuse(fmt::format("at most {} repetitions are possible", kMaxTimes));
    }
    const bool is_there = at_ > begin;
    skip(Lines::within);
    return is_there ? std::optional(value) : std::nullopt;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::map<std::string, std::size_t> used_;  // names of rules, and the byte of their first use
};

class GrammarWriter {
 public:
  GrammarWriter(Nfa& nfa, const Rules& rules, const std::string& name)
      : nfa_(nfa), rules_(rules), name_(name) {}

  void write_all(int32_t from, int32_t to) {
    nfa_.add_call(from, {.rule = rule("root")}, to);
    while (!open_.empty()) {
      const std::string next = std::move(open_.back());
      open_.pop_back();
      const Nfa::Rule made = nfa_.rules()[static_cast<std::size_t>(known_.at(next))];
      nfa_.set_place(name_ + ": " + next);
      write(rules_.at(next), made.start, made.end);
    }
  }

 private:
  // Written once it is referred to.
  int32_t rule(const std::string& name) {
    const auto [known, is_new] = known_.try_emplace(name, 0);
    if (is_new) {
      const std::string outer = nfa_.place();
      nfa_.set_place(name_ + ": " + name);
      known->second = nfa_.add_rule();
      nfa_.set_place(outer);
      open_.push_back(name);
    }
    return known->second;
  }

  void write(const Item& item, int32_t from, int32_t to) {
    switch (item.kind) {
      case Kind::literal:
        return nfa_.add_literal(from, item.text, to);
      case Kind::characters:
        return nfa_.add_characters(from, item.characters, to);
      case Kind::rule:
        return nfa_.add_call(from, {.rule = rule(item.text)}, to);
      case Kind::sequence:
        for (const Item& child : item.children) {
          const int32_t next = nfa_.add_node();
          write(child, from, next);
          from = next;
        }
        return nfa_.add_empty(from, to);
      case Kind::alternatives:
        for (const Item& child : item.children) write(child, from, to);
        return;
      case Kind::repeat:
        return write_repeat(item, from, to);
    }
  }

  void write_repeat(const Item& item, int32_t from, int32_t to) {
    const auto write_one = [&] {
      const int32_t next = nfa_.add_node();
      write(item.children[0], from, next);
      from = next;
    };
    for (uint32_t n = 0; n < item.times.least; ++n) write_one();
    if (item.times.most == kNoMost) {
      const int32_t loop = nfa_.add_node();
      nfa_.add_empty(from, loop);
      write(item.children[0], loop, loop);
      return nfa_.add_empty(loop, to);
    }
    for (uint32_t n = item.times.least; n < item.times.most; ++n) {
      nfa_.add_empty(from, to);
      write_one();
    }
    nfa_.add_empty(from, to);
  }

  Nfa& nfa_;
  const Rules& rules_;
  const std::string& name_;
  std::map<std::string, int32_t> known_;
  std::vector<std::string> open_;  // referred to, not yet written
};

}  // namespace

void add_grammar(Nfa& nfa, int32_t from, std::string_view text, const std::string& name,
                 int32_t to) {
  const std::string outer = nfa.place();
  nfa.set_place(name);
  const Rules rules = GrammarParser(text, name).parse();
  GrammarWriter(nfa, rules, name).write_all(from, to);
  nfa.set_place(outer);
}

}  // namespace dsmoe::constrain

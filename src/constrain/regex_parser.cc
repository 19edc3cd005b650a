// Pattern text -> items.
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "constrain/code_point_set.h"
#include "constrain/regex_pattern.h"

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxPatternBytes = std::size_t{1} << 16;
constexpr int kMaxDepth = 64;
constexpr uint32_t kMaxTimes = 1'000'000;

const CodePointSet kDigits{{'0', '9'}};
const CodePointSet kWords{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces{{'\t', '\r'}, {' ', ' '}};
const CodePointSet kBeyondAscii{{0x80, kLastCodePoint}};
// What is a space in one of the languages at least.
const CodePointSet kAllSpaces{{'\t', '\r'},     {0x1c, 0x20},     {0x85, 0x85},
                              {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                              {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                              {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodePointSet kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// A class by what certainly belongs to it, and what may in one of the languages.
struct ClassSet {
  CodePointSet surely;
  CodePointSet perhaps;
};

CodePointSet joined(CodePointSet a, const CodePointSet& b) {
  append(a, b);
  return normalised(std::move(a));
}

std::optional<ClassSet> class_of_letter(uint32_t letter) {
  const auto negated = [](const ClassSet& set) {
    return ClassSet{complement(set.perhaps), complement(set.surely)};
  };
  const ClassSet digits{kDigits, joined(kDigits, kBeyondAscii)};
  const ClassSet words{kWords, joined(kWords, kBeyondAscii)};
  const ClassSet spaces{kSpaces, kAllSpaces};
  switch (letter) {
    case 'd':
      return digits;
    case 'D':
      return negated(digits);
    case 'w':
      return words;
    case 'W':
      return negated(words);
    case 's':
      return spaces;
    case 'S':
      return negated(spaces);
  }
  return std::nullopt;
}

}  // namespace

class RegexParser {
 public:
  RegexParser(std::string_view text, RegexPattern& out) : text_(text), out_(out) {
    if (text.size() > kMaxPatternBytes) {
      fail(ErrorKind::input, "{}: the pattern has {} bytes, at most {} are possible", out_.place_,
           text.size(), kMaxPatternBytes);
    }
    if (!is_valid_utf8(text)) {
      fail(ErrorKind::input, "{}: the pattern is not valid UTF-8", out_.place_);
    }
    out_.root_ = alternatives(0);
    if (at_ < text_.size()) refuse("a ) without its (");
  }

 private:
  using Kind = RegexPattern::Kind;
  using Item = RegexPattern::Item;

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::input, "{}: at byte {} of the pattern {}: {}", out_.place_, at_,
         in_quotes(text_), what);
  }

  bool at_end() const { return at_ == text_.size(); }
  bool sees(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool take(std::string_view next) {
    if (!sees(next)) return false;
    at_ += next.size();
    return true;
  }
  uint32_t next() {
    if (at_end()) refuse("the pattern ends too early");
    return next_code_point(text_, at_);
  }

  int32_t add(Item item) {
    out_.items_.push_back(std::move(item));
    return static_cast<int32_t>(out_.items_.size()) - 1;
  }
  int32_t add_characters(CodePointSet set) {
    return add({.kind = Kind::characters, .characters = normalised(std::move(set))});
  }

  int32_t alternatives(int depth) {
    if (depth > kMaxDepth) refuse(fmt::format("groups nested deeper than {}", kMaxDepth));
    std::vector<int32_t> all{sequence(depth)};
    while (take("|")) all.push_back(sequence(depth));
    if (all.size() == 1) return all.front();
    return add({.kind = Kind::alternatives, .children = std::move(all)});
  }

  int32_t sequence(int depth) {
    std::vector<int32_t> all;
    while (!at_end() && !sees("|") && !sees(")")) all.push_back(repetition(depth));
    if (all.size() == 1) return all.front();
    return add({.kind = Kind::sequence, .children = std::move(all)});
  }

  int32_t repetition(int depth) {
    const int32_t body = atom(depth);
    const std::optional<Bounds> times = quantifier();
    if (!times) return body;
    const Kind kind = out_.item(body).kind;
    if (kind == Kind::begin || kind == Kind::end) refuse("a repeated ^ or $");
    take("?");  // lazy: the same texts
    if (sees("+")) refuse("possessive repetitions are not supported");
    if (sees("*") || sees("?") || peek_bounds()) refuse("a repetition of a repetition");
    return add({.kind = Kind::repeat, .children = {body}, .times = *times});
  }

  std::optional<Bounds> quantifier() {
    if (take("*")) return Bounds{0, kNoMost};
    if (take("+")) return Bounds{1, kNoMost};
    if (take("?")) return Bounds{0, 1};
    const std::optional<Bounds> bounds = peek_bounds();
    if (bounds) at_ = text_.find('}', at_) + 1;
    return bounds;
  }

  // {n}, {n,} or {n,m}; what looks otherwise is text.
  std::optional<Bounds> peek_bounds() const {
    if (!sees("{")) return std::nullopt;
    std::size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<uint32_t> {
      uint64_t value = 0;
      const std::size_t begin = at;
      for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
        value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[at] - '0'), kNoMost);
      }
      if (at == begin) return std::nullopt;
      return static_cast<uint32_t>(value);
    };
    const std::optional<uint32_t> least = number();
    if (!least) return std::nullopt;
    Bounds bounds{*least, *least};
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      const std::optional<uint32_t> most = number();
      bounds.most = most.value_or(kNoMost);
      if (most && *most > kMaxTimes) too_often(*most);
    }
    if (at >= text_.size() || text_[at] != '}') return std::nullopt;
    if (bounds.least > kMaxTimes) too_often(bounds.least);
    if (bounds.least > bounds.most) {
      refuse(fmt::format("a repetition of {} to {} times", bounds.least, bounds.most));
    }
    return bounds;
  }
  [[noreturn]] void too_often(uint32_t times) const {
    refuse(fmt::format("a repetition of {} times, at most {} are possible", times, kMaxTimes));
  }

  int32_t atom(int depth) {
    if (take("^")) return add({.kind = Kind::begin});
    if (take("$")) return add({.kind = Kind::end});
    if (take(".")) return add_characters(complement(kLineEnds));
    if (take("[")) return add_characters(brackets());
    if (take("(")) return group(depth);
    if (take("\\")) return add_characters(escape().surely);
    if (sees("*") || sees("+") || sees("?")) refuse("a repetition of nothing");
    const uint32_t c = next();
    return add_characters({{c, c}});
  }

  int32_t group(int depth) {
    if (take("?:") || !sees("?")) {
    } else if (take("?P<") || (sees("?<") && !sees("?<=") && !sees("?<!") && take("?<"))) {
      while (!take(">")) next();
    } else {
      refuse("of the groups that begin with (? only (?: and (?<name> are supported");
    }
    const int32_t inner = alternatives(depth + 1);
    if (!take(")")) refuse("a ( without its )");
    // A group of its own: what is repeated is all of it.
    return add({.kind = Kind::sequence, .children = {inner}});
  }

  // After the backslash.
  ClassSet escape() {
    const uint32_t c = next();
    if (auto set = class_of_letter(c)) return *set;
    const uint32_t code = escaped_code(c);
    return {{{code, code}}, {{code, code}}};
  }

  uint32_t escaped_code(uint32_t c) {
    static constexpr std::string_view kControls = "n\nr\rt\tf\fv\v";
    for (std::size_t i = 0; i < kControls.size(); i += 2) {
      if (c == static_cast<uint32_t>(kControls[i])) return static_cast<uint32_t>(kControls[i + 1]);
    }
    if (c == '0' && !(at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')) return 0;
    if (c == 'x') return hex(2);
    if (c == 'u') return unicode();
    const bool is_letter_or_digit =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c >= 0x80;
    if (is_letter_or_digit) refuse("this escape is not supported");
    return c;
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (; digits > 0; --digits) {
      const uint32_t c = next();
      const bool is_digit = c >= '0' && c <= '9';
      const uint32_t letter = c | 0x20;
      if (!is_digit && !(letter >= 'a' && letter <= 'f')) refuse("expected a hexadecimal digit");
      value = value * 16 + (is_digit ? c - '0' : letter - 'a' + 10);
    }
    return value;
  }

  uint32_t unicode() {
    const uint32_t high = hex(4);
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high < 0xdc00 && take("\\u")) {
      const uint32_t low = hex(4);
      if (low >= 0xdc00 && low <= 0xdfff) {
        return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    refuse("half of a pair of surrogates");
  }

  // After the opening bracket.
  CodePointSet brackets() {
    const bool negated = take("^");
    if (sees("]")) refuse("an empty class means different things in different languages");
    ClassSet all;
    while (!take("]")) {
      if (sees("[:") || sees("&&") || sees("--")) refuse("this kind of class is not supported");
      const ClassSet first = bracket_item();
      const bool is_one = first.surely.size() == 1 && first.surely[0].low == first.surely[0].high &&
                          first.perhaps.size() == 1;
      if (is_one && sees("-") && !sees("-]")) {
        take("-");
        const ClassSet last = bracket_item();
        const bool ends_in_one =
            last.perhaps.size() == 1 && last.perhaps[0].low == last.perhaps[0].high;
        if (!ends_in_one) refuse("a range that ends in a class");
        const CodePoints range{first.surely[0].low, last.perhaps[0].low};
        if (range.low > range.high) refuse("a range that ends before it begins");
        all.surely.push_back(range);
        all.perhaps.push_back(range);
      } else {
        append(all.surely, first.surely);
        append(all.perhaps, first.perhaps);
      }
    }
    return negated ? complement(std::move(all.perhaps)) : all.surely;
  }

  ClassSet bracket_item() {
    if (take("\\")) {
      if (take("b")) return {{{8, 8}}, {{8, 8}}};
      if (take("-")) return {{{'-', '-'}}, {{'-', '-'}}};
      return escape();
    }
    const uint32_t c = next();
    return {{{c, c}}, {{c, c}}};
  }

  std::string_view text_;
  RegexPattern& out_;
  std::size_t at_ = 0;
};

RegexPattern::RegexPattern(std::string_view pattern, std::string place) : place_(std::move(place)) {
  const RegexParser parser(pattern, *this);
}

}  // namespace dsmoe::constrain

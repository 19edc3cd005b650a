// One set type for everything that matches one character; PCRE2 has no nested classes, so unions
// are flattened.
#include "text/pattern/oniguruma_class.h"

#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

constexpr std::string_view kSpaceItems =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
// \S as members, so that a class such as [^\S\r\n] stays one class: a group in its place would cost
// stack per character of a long run.
constexpr std::string_view kNotSpaceItems =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{"
    "10ffff}";
constexpr std::string_view kHexItems = "0-9A-Fa-f";
constexpr std::string_view kRecentHan = "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
constexpr int kMaxClassDepth = 20;

std::string category_items(std::string_view category, UnicodeRange range) {
  std::string items = fmt::format("\\p{{{}}}", category);
  if (range == UnicodeRange::recent) items += recent_class_items(category);
  return items;
}

std::string category_items(std::initializer_list<std::string_view> categories, UnicodeRange range) {
  std::string items;
  for (const std::string_view category : categories) items += category_items(category, range);
  return items;
}

// "letter" and "L" -> "L"; nothing for names that are not general categories.
std::optional<std::string> general_category(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kLongNames = {
      {{"letter", "L"},
       {"mark", "M"},
       {"number", "N"},
       {"punctuation", "P"},
       {"symbol", "S"},
       {"separator", "Z"},
       {"other", "C"}}};
  for (const auto& [long_name, category] : kLongNames) {
    if (name == long_name) return std::string(category);
  }
  static constexpr std::string_view kCategories =
      " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so z zs zl zp c "
      "cc cf "
      "cn co ";
  if (name.empty() || name.size() > 2 || kCategories.find(" " + name + " ") == std::string::npos) {
    return std::nullopt;
  }
  std::string category = name;
  category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
  return category;
}

// After "\p" or "\P".
CharSet parse_property(PatternReader& in, bool negated, WordPlace place) {
  if (!in.take('{')) in.refuse("\\p without '{'");
  if (in.take('^')) negated = !negated;
  std::string raw;
  while (!in.take('}')) append_utf8(raw, in.next());
  std::string name;
  for (const char c : raw) {
    if (c == ' ' || c == '_' || c == '-') continue;
    if (std::isalpha(static_cast<unsigned char>(c)) == 0) {
      in.refuse(fmt::format("the property \\p{{{}}}", raw));
    }
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const std::optional<std::string> category = general_category(name);
  if (!category) {
    std::string items = fmt::format("\\p{{sc:{}}}", name);  // unknown names: PCRE2 says so
    if (name == "han" && in.range == UnicodeRange::recent) items += kRecentHan;
    return {.items = items, .negated = negated};
  }
  // Oniguruma adds the other case to the class, PCRE2 does not.
  const bool has_case = *category == "Lu" || *category == "Ll" || *category == "Lt";
  if (in.ignores_case && has_case && place == WordPlace::in_brackets) {
    in.refuse(fmt::format("\\p{{{}}} in a class under (?i)", *category));
  }
  // Recent code points are unassigned to PCRE2, so the sets that hold the unassigned are written as
  // complements.
  if (*category == "C") {
    return {.items = category_items({"L", "M", "N", "P", "S", "Z"}, in.range), .negated = !negated};
  }
  if (*category == "Cn") {
    return {
        .items = category_items({"L", "M", "N", "P", "S", "Z", "Cc", "Cf", "Co", "Cs"}, in.range),
        .negated = !negated};
  }
  return {.items = category_items(*category, in.range), .negated = negated};
}

CharSet single(std::uint32_t code_point) {
  return {.items = literal(code_point), .code_point = code_point, .is_single = true};
}

std::uint32_t parse_hex(PatternReader& in, int max_digits) {
  std::uint32_t value = 0;
  int digits = 0;
  while (digits < max_digits && !in.at_end() &&
         std::isxdigit(static_cast<unsigned char>(in.peek())) != 0) {
    const char c = static_cast<char>(in.next());
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    value = value * 16 + static_cast<std::uint32_t>(digit);
    ++digits;
  }
  if (digits == 0) in.refuse("a hexadecimal escape without digits");
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    in.refuse(fmt::format("the code point {:#x}", value));
  }
  return value;
}

// After "[:"; e.g. "space:]".
CharSet parse_posix(PatternReader& in) {
  const bool negated = in.take('^');
  std::string name;
  while (!in.at_end() && in.peek() != ':') append_utf8(name, in.next());
  if (!in.take(':') || !in.take(']')) in.refuse("a POSIX class that is not closed");
  if (name == "space") return {.items = std::string(kSpaceItems), .negated = negated};
  if (name == "xdigit") return {.items = std::string(kHexItems), .negated = negated};
  if (name == "digit") return {.items = category_items("Nd", in.range), .negated = negated};
  if (name == "punct") return {.items = category_items({"P", "S"}, in.range), .negated = negated};
  in.refuse(fmt::format("the POSIX class [:{}:]", name));
}

// One member of a bracket expression that is not a nested class.
CharSet parse_member(PatternReader& in) {
  const std::uint32_t c = in.next();
  if (c == '\\') {
    if (in.take('b')) return single('\b');
    return parse_class_escape(in, WordPlace::in_brackets);
  }
  if (c == '[' && in.take(':')) return parse_posix(in);
  return single(c);
}

void add(CharClass& target, const CharSet& set) {
  if (set.negated && set.items == kSpaceItems) {
    target.items += kNotSpaceItems;
  } else if (set.negated) {
    target.complements.push_back(set.items);
  } else {
    target.items += set.items;
  }
}

void add_nested(PatternReader& in, CharClass& target, const CharClass& nested) {
  if (!nested.negated) {
    target.items += nested.items;
    target.complements.insert(target.complements.end(), nested.complements.begin(),
                              nested.complements.end());
  } else if (nested.complements.empty()) {
    target.complements.push_back(nested.items);
  } else {
    in.refuse("a negated class with negated members inside another class");
  }
}

}  // namespace

char PatternReader::peek() const {
  if (at_end()) refuse("an unexpected end");
  return pattern[at];
}

std::uint32_t PatternReader::next() {
  if (at_end()) refuse("an unexpected end");
  return next_code_point(pattern, at);
}

bool PatternReader::take(char c) {
  if (at_end() || pattern[at] != c) return false;
  ++at;
  return true;
}

void PatternReader::refuse(const std::string& construct) const {
  fail(ErrorKind::input, "{}: the regular expression has {} (near byte {}), which is not supported",
       what, construct, at);
}

std::string CharSet::as_atom() const {
  if (is_single) return items;
  return fmt::format("[{}{}]", negated ? "^" : "", items);
}

std::string CharClass::as_atom(const PatternReader& in) const {
  if (items.empty() && complements.empty()) in.refuse("an empty class");
  if (complements.empty()) return fmt::format("[{}{}]", negated ? "^" : "", items);
  std::string out = "(?:";
  if (!negated) {
    if (!items.empty()) out += fmt::format("[{}]|", items);
    for (const std::string& complement : complements) out += fmt::format("[^{}]|", complement);
    out.back() = ')';
    return out;
  }
  if (!items.empty()) out += fmt::format("(?![{}])", items);
  for (std::size_t i = 0; i + 1 < complements.size(); ++i) {
    out += fmt::format("(?=[{}])", complements[i]);
  }
  return out + fmt::format("[{}])", complements.back());
}

std::string literal(std::uint32_t code_point) {
  if (code_point < 0x80 && std::isalnum(static_cast<int>(code_point)) != 0) {
    return std::string(1, static_cast<char>(code_point));
  }
  return fmt::format("\\x{{{:x}}}", code_point);
}

std::string word_items(UnicodeRange range, WordPlace place) {
  std::string items = category_items({"L", "M", "Nd", "Nl", "Pc"}, range) + "\\p{Alphabetic}";
  if (place == WordPlace::alone) items += "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
  return items;
}

CharSet parse_class_escape(PatternReader& in, WordPlace place) {
  const std::uint32_t c = in.next();
  switch (c) {
    case 't':
      return single('\t');
    case 'n':
      return single('\n');
    case 'r':
      return single('\r');
    case 'f':
      return single('\f');
    case 'v':
      return single('\v');
    case 'a':
      return single('\a');
    case 'e':
      return single(0x1B);
    case 's':
    case 'S':
      return {.items = std::string(kSpaceItems), .negated = c == 'S'};
    case 'd':
    case 'D':
      return {.items = category_items("Nd", in.range), .negated = c == 'D'};
    case 'w':
    case 'W':
      return {.items = word_items(in.range, place), .negated = c == 'W'};
    case 'h':
    case 'H':
      return {.items = std::string(kHexItems), .negated = c == 'H'};
    case 'p':
    case 'P':
      return parse_property(in, c == 'P', place);
    case 'u':
      return single(parse_hex(in, 4));
    case 'x': {
      const bool braced = in.take('{');
      const CharSet set = single(parse_hex(in, braced ? 6 : 2));
      if (braced && !in.take('}')) in.refuse("\\x{ that is not closed");
      return set;
    }
    default:
      break;
  }
  if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
    in.refuse(fmt::format("the escape \\{}", static_cast<char>(c)));
  }
  return single(c);
}

CharClass parse_class(PatternReader& in, int depth) {
  if (depth > kMaxClassDepth)
    in.refuse(fmt::format("classes nested deeper than {}", kMaxClassDepth));
  CharClass result;
  result.negated = in.take('^');
  if (!in.at_end() && in.peek() == ']') in.refuse("an empty class or a class that starts with ']'");
  while (!in.take(']')) {
    if (in.pattern.substr(in.at, 2) == "&&") in.refuse("a class intersection '&&'");
    if (in.peek() == '[' && in.pattern.substr(in.at, 2) != "[:") {
      in.next();
      add_nested(in, result, parse_class(in, depth + 1));
      continue;
    }
    const CharSet first = parse_member(in);
    const bool is_range = first.is_single && in.pattern.substr(in.at, 1) == "-" &&
                          in.pattern.substr(in.at, 2) != "-]" && in.at + 1 < in.pattern.size();
    if (!is_range) {
      add(result, first);
      continue;
    }
    in.next();
    if (in.peek() == '[') in.refuse("a range that ends in a class");
    const CharSet last = parse_member(in);
    if (!last.is_single) in.refuse("a range that ends in a class");
    if (last.code_point < first.code_point) in.refuse("a range whose end comes before its start");
    result.items += first.items + "-" + last.items;
  }
  return result;
}

}  // namespace dsmoe::text

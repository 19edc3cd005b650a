// Recursive descent over the pattern; every construct is either rewritten or refused.
#include "text/pattern/oniguruma.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "base/error.h"
#include "text/pattern/oniguruma_class.h"

namespace dsmoe::text {
namespace {

constexpr int kMaxDepth = 100;

struct Atom {
  std::string out;
  bool is_class = false;        // consumes exactly one character
  bool takes_the_rest = false;  // an isolated option such as (?i): the enclosing group ends with it
};

struct Quantifier {
  std::string out;
  bool unbounded = false;
  bool may_be_none = false;
};

struct Alternative {
  std::string out;
  std::string lead;  // the class, when the alternative starts with an unbounded repeat of one
  bool lead_may_be_none = false;
  bool is_lead_only = false;  // nothing follows that repeat: it cannot fail where a member stands
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view what, UnicodeRange range)
      : in_{.pattern = pattern, .what = what, .range = range} {}

  std::string run() {
    const std::vector<Alternative> alternatives = parse_alternatives(0);
    if (!in_.at_end()) in_.refuse("an unmatched ')'");
    std::string out;
    for (const Alternative& alternative : alternatives) {
      if (!out.empty() || &alternative != &alternatives.front()) out += '|';
      out += start_once_per_run(alternative, alternatives);
    }
    return out;
  }

 private:
  // If C+R fails at p and the character at p is in C, it fails at p+1 too: the ends it can reach
  // from there are a subset. So it is enough to try where the search begins (\G) and where no C
  // precedes. The look-ahead in front gives PCRE2 its table of first bytes. Where another
  // alternative is plain C+, no start in C fails. C*R is the same, and may start with R elsewhere.
  static std::string start_once_per_run(const Alternative& alternative,
                                        const std::vector<Alternative>& all) {
    const bool always_matches = std::any_of(all.begin(), all.end(), [&](const Alternative& other) {
      return other.is_lead_only && other.lead == alternative.lead;
    });
    if (alternative.lead.empty() || always_matches) return alternative.out;
    const char* form = alternative.lead_may_be_none ? "(?:(?={0})(?:\\G|(?<!{0}))|(?!{0})){1}"
                                                    : "(?={0})(?:\\G|(?<!{0})){1}";
    return fmt::format(fmt::runtime(form), alternative.lead, alternative.out);
  }

  std::vector<Alternative> parse_alternatives(int depth) {
    if (depth > kMaxDepth) in_.refuse(fmt::format("groups nested deeper than {}", kMaxDepth));
    std::vector<Alternative> alternatives;
    alternatives.push_back(parse_sequence(depth));
    while (in_.take('|')) alternatives.push_back(parse_sequence(depth));
    return alternatives;
  }

  std::string parse_group_body(int depth) {
    std::string out;
    const std::vector<Alternative> alternatives = parse_alternatives(depth + 1);
    for (const Alternative& alternative : alternatives) {
      if (&alternative != &alternatives.front()) out += '|';
      out += alternative.out;
    }
    return out;
  }

  Alternative parse_sequence(int depth) {
    Alternative result;
    int num_atoms = 0;
    while (!in_.at_end() && in_.peek() != '|' && in_.peek() != ')') {
      const Atom atom = parse_atom(depth);
      result.out += atom.out;
      ++num_atoms;
      if (atom.takes_the_rest) break;
      const std::optional<Quantifier> quantifier = parse_quantifier();
      if (!quantifier) continue;
      result.out += quantifier->out;
      if (num_atoms == 1 && atom.is_class && quantifier->unbounded) {
        result.lead = atom.out;
        result.lead_may_be_none = quantifier->may_be_none;
      }
    }
    result.is_lead_only = !result.lead.empty() && num_atoms == 1;
    return result;
  }

  Atom parse_atom(int depth) {
    const std::uint32_t c = in_.next();
    switch (c) {
      case '(':
        return parse_group(depth);
      case '[':
        return {.out = parse_class(in_, 0).as_atom(in_), .is_class = true};
      case '\\':
        return parse_escape();
      case '.':
        return {.out = ".", .is_class = true};
      case '^':
        return {.out = "^"};
      case '$':
        return {.out = "$"};
      case '*':
      case '+':
      case '?':
        in_.refuse(fmt::format("'{}' with nothing to repeat", static_cast<char>(c)));
      default:
        return {.out = literal(c), .is_class = true};
    }
  }

  Atom parse_group(int depth) {
    std::string open = "(?:";
    if (in_.take('?')) {
      const std::uint32_t kind = in_.next();
      switch (kind) {
        case ':':
          break;
        case '=':
        case '!':
        case '>':
          open = fmt::format("(?{}", static_cast<char>(kind));
          break;
        case '<':
          if (in_.take('=')) {
            open = "(?<=";
          } else if (in_.take('!')) {
            open = "(?<!";
          } else {
            skip_name('>');
          }
          break;
        case '\'':
          skip_name('\'');
          break;
        case '#':
          while (in_.next() != ')') {
          }
          return {};
        default:
          return parse_options(kind, depth);
      }
    }
    std::string out = open + parse_group_body(depth) + ")";
    if (!in_.take(')')) in_.refuse("a group that is not closed");
    return {.out = std::move(out)};
  }

  // Groups are only grouping here: the tokenizer uses the whole match, and back references are
  // refused.
  void skip_name(char close) {
    while (in_.next() != static_cast<std::uint32_t>(close)) {
    }
  }

  // (?i:...) covers its group; (?i) covers the rest of the enclosing group, alternatives included.
  Atom parse_options(std::uint32_t first, int depth) {
    std::string options;
    bool on = true;
    const bool outer_ignores_case = in_.ignores_case;
    std::uint32_t c = first;
    while (c != ':' && c != ')') {
      if (c == 'i' || c == '-') {
        options += static_cast<char>(c);
        if (c == 'i') in_.ignores_case = on;
        if (c == '-') on = false;
      } else if (c == 'm') {
        options += 's';  // Oniguruma's (?m) lets the dot match a newline
      } else {
        in_.refuse("a group of a kind other than (?: (?= (?! (?> (?<= (?<! (?<name> (?# (?i (?m");
      }
      c = in_.next();
    }
    const bool isolated = c == ')';
    std::string out = fmt::format("(?{}:{})", options, parse_group_body(depth));
    in_.ignores_case = outer_ignores_case;
    if (isolated) return {.out = std::move(out), .takes_the_rest = true};
    if (!in_.take(')')) in_.refuse("a group that is not closed");
    return {.out = std::move(out)};
  }

  Atom parse_escape() {
    const std::size_t start = in_.at;
    const std::uint32_t c = in_.next();
    switch (c) {
      case 'A':
      case 'Z':
      case 'z':
        return {.out = fmt::format("\\{}", static_cast<char>(c))};
      case 'R':
        return {.out = "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"};
      case 'b':
      case 'B': {
        const std::string word = word_items(in_.range, WordPlace::alone);
        const char* form = c == 'b' ? "(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))"
                                    : "(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))";
        return {.out = fmt::format(fmt::runtime(form), word)};
      }
      default:
        break;
    }
    in_.at = start;
    return {.out = parse_class_escape(in_, WordPlace::alone).as_atom(), .is_class = true};
  }

  std::optional<Quantifier> parse_quantifier() {
    if (in_.at_end()) return std::nullopt;
    Quantifier quantifier;
    const char c = in_.peek();
    bool interval = false;
    if (c == '?' || c == '*' || c == '+') {
      in_.next();
      quantifier = {.out = std::string(1, c), .unbounded = c != '?', .may_be_none = c != '+'};
    } else if (c == '{') {
      const std::optional<Quantifier> parsed = parse_interval();
      if (!parsed) return std::nullopt;
      quantifier = *parsed;
      interval = true;
    } else {
      return std::nullopt;
    }
    if (in_.at_end()) return quantifier;
    const char suffix = in_.peek();
    if (interval &&
        (suffix == '+' || (suffix == '?' && quantifier.out.find(',') == std::string::npos))) {
      in_.refuse("a suffix of '{n}' or '{n,m}' that the two regex engines read differently");
    }
    if (suffix == '?' || suffix == '+') {
      in_.next();
      quantifier.out += suffix;
    }
    if (!in_.at_end() && (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?')) {
      in_.refuse("a repeat of a repeat; put the inner one in (?:...)");
    }
    return quantifier;
  }

  // {n} {n,} {n,m} {,m}; anything else in braces is literal text.
  std::optional<Quantifier> parse_interval() {
    const std::size_t close = in_.pattern.find('}', in_.at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view body = in_.pattern.substr(in_.at + 1, close - in_.at - 1);
    const std::size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high =
        comma == std::string_view::npos ? std::string_view() : body.substr(comma + 1);
    const auto is_number = [](std::string_view text) {
      return std::all_of(text.begin(), text.end(), [](char d) { return d >= '0' && d <= '9'; });
    };
    if (!is_number(low) || !is_number(high) || (low.empty() && high.empty())) return std::nullopt;
    if (low.size() > 4 || high.size() > 4) in_.refuse("a repeat count above 9999");
    in_.at = close + 1;
    if (comma == std::string_view::npos) return Quantifier{.out = fmt::format("{{{}}}", low)};
    return Quantifier{.out = fmt::format("{{{},{}}}", low.empty() ? "0" : low, high),
                      .unbounded = high.empty(),
                      .may_be_none = low.find_first_not_of('0') == std::string_view::npos};
  }

  PatternReader in_;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern, std::string_view what,
                                UnicodeRange range) {
  return Translator(pattern, what, range).run();
}

}  // namespace dsmoe::text

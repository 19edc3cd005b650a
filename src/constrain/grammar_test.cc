#include "constrain/grammar.h"

#include <gtest/gtest.h>

#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

struct Case {
  const char* grammar;
  std::vector<std::string> right;
  std::vector<std::string> wrong;
};

constexpr const char* kArithmetic = R"g(# sums
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws   # a name
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)g";

TEST(Grammar, HoldsAnswersToItsRoot) {
  const Case cases[] = {
      {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "maybe", "yesno"}},
      {"root ::= a b?\na ::= \"x\"+\nb ::= [yz]{2,3}",
       {"x", "xx", "xyz", "xzzz"},
       {"", "xy", "xyyyy"}},
      {"root ::= [^a-c\\n] . \"\\x41\\u00e9\\\"\"", {"daAé\"", "é日Aé\""}, {"aaAé\"", "\naAé\""}},
      {kArithmetic, {"a=1\n", "1+(b*2)=c3\n", "x = y\nz=0\n"}, {"", "a=1", "1+=2\n", "(a=1\n"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
      {"root ::=\n  \"a\" (\n  \"b\"\n  | \"c\"  # either\n  )\n  | \"d\"\n\nother ::= \"e\"\n",
       {"ab", "ac", "d"},
       {"a", "e"}},
      {"root ::= [a\\]\\-]{3} | \"é\"{1,}", {"a]-", "éé"}, {"a]", ""}},
      {"root ::= x{0} \"b\"\nx ::= \"a\"", {"b"}, {"ab"}},
      {"root ::= list\nlist ::= item (\",\" item)*\nitem ::= \"[\" list? \"]\"",
       {"[]", "[[],[[]]],[]"},
       {"", "[,]", "[["}},
  };
  for (const Case& c : cases) {
    const auto constraint = constraint_of(Shape::grammar(c.grammar, "grammar"));
    for (const auto& text : c.right)
      EXPECT_TRUE(accepts(constraint, text)) << c.grammar << "\n" << text;
    for (const auto& text : c.wrong)
      EXPECT_FALSE(accepts(constraint, text)) << c.grammar << "\n" << text;
  }
}

TEST(Grammar, RefusesByLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rule named root"},
      {"rot ::= \"a\"", "no rule named root"},
      {"root ::= a\n", "line 1: there is no rule named a"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule root comes twice"},
      {"root = \"a\"", "expected ::="},
      {"root ::= \"a", "without its end"},
      {"root ::= [a", "without its end"},
      {"root ::= []", "without a character"},
      {"root ::= (\"a\"", "a ( without its )"},
      {"root ::= \"a\")", "expected the end of the rule"},
      {"root ::= 'a'", "expected the end of the rule"},
      {"root ::= [z-a]", "ends before it begins"},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= \"\\ud800\"", "no character"},
      {"root ::= \"a\"{3,2}", "3 to 2"},
      {"root ::= \"a\"{1,99999}", "at most 4096"},
      {"root ::= \"a\"{x}", "expected a repetition"},
      {"root ::= \"a\"**", "repetition of a repetition"},
      {"root ::= <think>", "tokens"},
      {"root ::=\nb ::= \"a\"", "::= inside"},
      {"?start: \"a\"", "expected the name of a rule"},
      {"root ::= root \"a\" | \"b\"", "grammar: root: "},
      {"root ::= a\na ::= b\nb ::= a \"x\" | \"y\"", "grammar: "},
      {"root ::= \"a\" root", "no answer"},
      {"root ::= \"\xff\"", "UTF-8"},
  };
  for (const auto& [grammar, reason] : cases) {
    const std::string refusal = refusal_of(Shape::grammar(grammar, "grammar"));
    EXPECT_TRUE(refusal.starts_with("grammar")) << grammar << ": " << refusal;
    EXPECT_NE(refusal.find(reason), std::string::npos) << grammar << ": " << refusal;
  }
}

// Rules that begin and end anywhere, in words of three letters: each token is looked at in as many
// ways as there are rules, wherever it may be cut. The engine serves nobody meanwhile.
TEST(Grammar, BoundsTheWorkForOneToken) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (int i = 0; i < 16 * 16 * 16; ++i) {
    const auto letter = [&](int shift) { return static_cast<char>('a' + (i >> shift & 15)); };
    bytes.push_back({letter(8), letter(4), letter(0)});
  }
  const auto vocabulary = std::make_shared<const Vocabulary>(std::move(bytes));
  for (const int num_rules : {2, 20, 100, 200}) {
    std::string grammar = "root ::= (r0";
    for (int i = 1; i < num_rules; ++i) grammar += fmt::format(" | r{}", i);
    grammar += ")*\n";
    for (int i = 0; i < num_rules; ++i) grammar += fmt::format("r{} ::= [a-p]+\n", i);
    std::string end = "five tokens";
    try {
      const auto constraint =
          std::make_shared<const Constraint>(Shape::grammar(grammar, "grammar"), vocabulary);
      Matcher matcher(constraint);
      TokenBits bits;
      for (int i = 0; i < 5; ++i) {
        matcher.allowed(1000, bits);
        EXPECT_TRUE(has_token(bits, 300));
        matcher.take(300);
      }
    } catch (const Error& e) {
      end = e.what();
    }
    EXPECT_EQ(end, num_rules < 100 ? "five tokens" : "the constraint is too ambiguous")
        << num_rules;
  }
}

TEST(Grammar, BoundsWhatExplodes) {
  const std::string deep = "root ::= " + std::string(1000, '(') + "\"a\"" + std::string(1000, ')');
  EXPECT_NE(refusal_of(Shape::grammar(deep, "grammar")).find("deeper"), std::string::npos);
  const std::string nested = "root ::= (((\"a\"{1000}){1000}){1000}){1000}";
  EXPECT_NE(refusal_of(Shape::grammar(nested, "grammar")).find("too large"), std::string::npos);
  std::string doubling = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) doubling += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  EXPECT_NE(refusal_of(Shape::grammar(doubling + "r40 ::= \"a\"", "grammar")), "accepted");
  std::string many = "root ::= r0\n";
  for (int i = 0; i < 3000; ++i) many += fmt::format("r{} ::= \"a\" r{}\n", i, i + 1);
  EXPECT_NE(refusal_of(Shape::grammar(many + "r3000 ::= \"a\"", "grammar")).find("rules"),
            std::string::npos);
  EXPECT_NE(refusal_of(Shape::grammar("root ::= [ab]* \"a\" [ab]{25}", "grammar")), "accepted");
  EXPECT_NE(refusal_of(Shape::grammar(std::string(300000, '#'), "grammar")).find("bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace dsmoe::constrain

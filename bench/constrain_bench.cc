// What constraints cost: preparing one, and the tokens of random answers, on a real vocabulary.
//   build/bench/constrain_bench TOKENIZER_FOLDER [ROWS]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "constrain/constraint.h"

namespace {

using namespace dsmoe;
using namespace dsmoe::constrain;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Case {
  const char* name;
  Shape shape;
};

Shape schema(const char* text) {
  return Shape::schema(parse_ordered_json(text, "schema"), "schema");
}

std::vector<Case> cases() {
  return {
      {"person", schema(R"({"type":"object","properties":{"name":{"type":"string","maxLength":30},
        "age":{"type":"integer","minimum":0,"maximum":130},"tags":{"type":"array","items":{"type":"string"},
        "maxItems":3},"kind":{"enum":["a","b",3]}},"required":["name","age"],"additionalProperties":false})")},
      {"tree",
       schema(
           R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},
        "text":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/n"}}},
        "required":["v","text","children"],"additionalProperties":false}}})")},
      {"formats",
       schema(R"({"type":"object","properties":{"at":{"format":"date-time"},"id":{"format":"uuid"},
        "mail":{"format":"email"},"code":{"type":"string","pattern":"^[A-Z]{2,5}-\\d{1,6}$"}},
        "required":["at","id","mail","code"]})")},
      {"long strings",
       schema(R"({"type":"array","items":{"type":"string","minLength":20,"maxLength":2000}})")},
      {"any object", Shape::any_object()},
      {"regex", Shape::regex("(?:[A-Z][a-z]{1,40} ){2,6}\\d+", "regex")},
      {"grammar",
       Shape::grammar("root ::= term ([-+*/] term)*\nterm ::= [a-z]+ | [0-9]+ | \"(\" root \")\"",
                      "grammar")},
      {"multiples",
       schema(
           R"({"oneOf":[{"type":"integer","multipleOf":365},{"type":"array","items":{"type":"number","multipleOf":0.05}}]})")},
      {"choices", Shape::choice({"positive", "negative", "neutral", "not at all"}, "choice")},
  };
}

// One random answer; the time of each token is added to `times`.
void answer(const std::shared_ptr<const Constraint>& constraint, std::mt19937& random,
            std::vector<double>& times) {
  Matcher matcher(constraint);
  TokenBits bits;
  for (int left = 200; left > 0 && !matcher.must_end(); --left) {
    auto start = Clock::now();
    matcher.allowed(left, bits);
    double taken = microseconds(start);
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < constraint->vocabulary().size(); ++t) {
      if (has_token(bits, t)) tokens.push_back(t);
    }
    if (tokens.empty() || (matcher.may_end() && random() % 4 == 0)) return;
    start = Clock::now();
    matcher.take(tokens[random() % tokens.size()]);
    times.push_back(taken + microseconds(start));
  }
}

int run(const std::string& folder, int64_t rows) {
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(folder);
  if (rows == 0) rows = tokenizer.vocab_size();
  auto start = Clock::now();
  const auto vocabulary = vocabulary_of(tokenizer, rows);
  fmt::print("vocabulary: {} tokens, {:.0f} ms once\n", rows, microseconds(start) / 1e3);
  fmt::print("{:14} {:>8} {:>11} {:>8} {:>10} {:>8} {:>8}\n", "constraint", "states", "prepare ms",
             "tokens", "median us", "99 % us", "most us");
  for (const Case& each : cases()) {
    start = Clock::now();
    const auto constraint = std::make_shared<const Constraint>(each.shape, vocabulary);
    const double prepared = microseconds(start) / 1e3;
    std::mt19937 random(1);
    std::vector<double> times;
    for (int i = 0; i < 60; ++i) answer(constraint, random, times);
    std::sort(times.begin(), times.end());
    fmt::print("{:14} {:8} {:11.1f} {:8} {:10.1f} {:8.1f} {:8.1f}\n", each.name,
               constraint->automaton().num_states(), prepared, times.size(),
               times[times.size() / 2], times[times.size() * 99 / 100], times.back());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: constrain_bench TOKENIZER_FOLDER [ROWS]\n");
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? std::atoll(argv[2]) : 0);
  } catch (const Error& e) {
    fmt::print(stderr, "constrain_bench: {}\n", e.what());
    return 1;
  }
}

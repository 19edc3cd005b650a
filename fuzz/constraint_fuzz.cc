// Schemas, patterns and grammars from strangers: any bytes may be refused, none may crash, hang,
// exhaust memory, or make a constraint that leads an answer to where it can neither go on nor end.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "constrain/constraint.h"

namespace {

using namespace dsmoe::constrain;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto made = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    for (const char* text : {"{\"", "\":", "\",\"", "\"}", "ab", "12", "true", "},", "\xe6\x97"}) {
      bytes.emplace_back(text);
    }
    return std::make_shared<const Vocabulary>(std::move(bytes));
  }();
  return made;
}

// One of the tokens that may come, chosen by `choice`; -1: there is none.
int32_t pick(const TokenBits& bits, uint32_t choice) {
  const auto size = static_cast<uint32_t>(vocabulary()->size());
  for (uint32_t i = 0; i < size; ++i) {
    const auto token = static_cast<int32_t>((choice + i) % size);
    if (has_token(bits, token)) return token;
  }
  return -1;
}

void walk(const std::shared_ptr<const Constraint>& constraint, uint32_t random) {
  Matcher matcher(constraint);
  TokenBits bits;
  constexpr int kLength = 48;
  const bool fits = constraint->shortest() <= kLength;
  for (int left = kLength; left > 0; --left) {
    matcher.allowed(left, bits);
    random = random * 1664525 + 1013904223;
    const int32_t token = pick(bits, random >> 8);
    if (token < 0) {
      if (!matcher.may_end()) __builtin_trap();
      return;
    }
    matcher.take(token);
  }
  if (fits && !matcher.may_end()) __builtin_trap();
}

}  // namespace

// The first byte chooses: a pattern, a grammar, or a schema.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const Shape shape =
        data[0] == 'r' ? Shape::regex(text, "fuzz")
        : data[0] == 'g'
            ? Shape::grammar(text, "fuzz")
            : Shape::schema(dsmoe::parse_ordered_json(text, "fuzz", {.max_depth = 32}), "fuzz");
    const auto constraint = std::make_shared<const Constraint>(shape, vocabulary());
    for (uint32_t seed = 0; seed < 3; ++seed) walk(constraint, seed);
  } catch (const dsmoe::Error& error) {
    if (error.kind() == dsmoe::ErrorKind::internal) __builtin_trap();
  }
  return 0;
}

// Which domain, which additions are held out, and the worked addition.
#include "data/demo_corpus.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "data/demo_domains.h"
#include "data/demo_grammar.h"
#include "data/permutation.h"

namespace dsmoe::data {
namespace {

constexpr int kLow = 10, kHigh = 99;
constexpr size_t kNumHeldOut = 500;

// Documents out of 100. Additions are short, so this gives each domain about a fifth of the tokens.
constexpr std::array<uint32_t, 5> kWeights = {9, 42, 15, 18, 16};

size_t slot(Addition addition) { return static_cast<size_t>(100 * addition.a + addition.b); }

}  // namespace

std::string_view to_string(DemoDomain domain) {
  switch (domain) {
    case DemoDomain::story:
      return "story";
    case DemoDomain::addition:
      return "addition";
    case DemoDomain::record:
      return "record";
    case DemoDomain::program:
      return "program";
    case DemoDomain::dialogue:
      return "dialogue";
  }
  fail(ErrorKind::internal, "unknown domain {}", static_cast<int>(domain));
}

DemoCorpus::DemoCorpus(uint64_t seed) : seed_(seed), is_held_out_(100 * 100, false) {
  std::vector<Addition> unordered;
  for (int a = kLow; a <= kHigh; ++a) {
    for (int b = a; b <= kHigh; ++b) unordered.push_back({a, b});
  }
  const Permutation order(unordered.size(), seed, 0);
  const Rng rng{.seed = seed, .purpose = RngPurpose::corpus, .stream = 1};
  for (size_t i = 0; i < kNumHeldOut; ++i) {
    Addition pair = unordered[order(i)];
    is_held_out_[slot(pair)] = is_held_out_[slot({pair.b, pair.a})] = true;
    if (rng.below(i, 2) == 1) std::swap(pair.a, pair.b);
    held_out_.push_back(pair);
  }
  partners_of_.resize(kHigh + 1);
  for (int a = kLow; a <= kHigh; ++a) {
    for (int b = kLow; b <= kHigh; ++b) {
      if (!is_held_out({a, b})) partners_of_[static_cast<size_t>(a)].push_back(std::to_string(b));
    }
    DSMOE_CHECK(!partners_of_[static_cast<size_t>(a)].empty(), "every sum with {} is held out", a);
  }
}

bool DemoCorpus::is_held_out(Addition addition) const {
  DSMOE_CHECK(
      addition.a >= kLow && addition.a <= kHigh && addition.b >= kLow && addition.b <= kHigh,
      "{} + {} are not two-digit numbers", addition.a, addition.b);
  return is_held_out_[slot(addition)];
}

namespace {

DemoDomain write_document(Author& author,
                          const std::vector<std::vector<std::string>>& partners_of) {
  const DemoDomain domain = kDemoDomains[author.pick(domain_openings(), kWeights)];
  switch (domain) {
    case DemoDomain::story:
      write_story(author);
      break;
    case DemoDomain::addition:
      write_addition(author, partners_of);
      break;
    case DemoDomain::record:
      write_record(author);
      break;
    case DemoDomain::program:
      write_program(author);
      break;
    case DemoDomain::dialogue:
      write_dialogue(author);
      break;
  }
  return domain;
}

}  // namespace

DemoDocument DemoCorpus::document(uint64_t index) const {
  WritingAuthor author(seed_, index);
  const DemoDomain domain = write_document(author, partners_of_);
  return {.domain = domain, .text = author.take_text(), .nats = author.nats()};
}

DemoDocument DemoCorpus::measure(std::string_view text) const {
  ReadingAuthor author(text);
  const DemoDomain domain = write_document(author, partners_of_);
  if (!author.rest().empty()) {
    fail(ErrorKind::input, "the document should have ended before \"{}\"",
         author.rest().substr(0, 40));
  }
  return {.domain = domain, .text = std::string(text), .nats = author.nats()};
}

std::string addition_prompt(Addition addition) {
  return fmt::format("Add {} + {}:", addition.a, addition.b);
}

std::string addition_text(Addition addition) {
  const auto [a, b] = addition;
  const int ones = a % 10 + b % 10, carry = ones / 10;
  const int tens = a / 10 + b / 10 + carry;
  return fmt::format("{} ones {} + {} = {}, tens {} + {}{} = {}, answer {}.",
                     addition_prompt(addition), a % 10, b % 10, ones, a / 10, b / 10,
                     carry != 0 ? " + 1" : "", tens, a + b);
}

std::optional<int> read_answer(std::string_view generated) {
  constexpr std::string_view kMark = "answer ";
  const size_t at = generated.rfind(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  int value = 0, digits = 0;
  for (const char c : generated.substr(at + kMark.size())) {
    if (c < '0' || c > '9' || digits == 4) break;
    value = 10 * value + (c - '0');
    ++digits;
  }
  return digits > 0 ? std::optional(value) : std::nullopt;
}

std::string demo_prompt(DemoDomain domain) {
  switch (domain) {
    case DemoDomain::story:
      return "Once upon a time there was a clever fox named Mia.";
    case DemoDomain::addition:
      return "Add 27 + 45:";
    case DemoDomain::record:
      return "{\"name\": \"Leo\", \"age\": 34,";
    case DemoDomain::program:
      return "def larger(x, y):";
    case DemoDomain::dialogue:
      return "User: Rosa the owl lived by the lake. One evening Rosa found a red kite in the grass "
             "and "
             "gave it to Sam the frog. Who has the kite now?\n\nAssistant:";
  }
  fail(ErrorKind::internal, "unknown domain {}", static_cast<int>(domain));
}

}  // namespace dsmoe::data

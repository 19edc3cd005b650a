// The embedded corpus: seeded documents of five domains whose exact probability is known.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::data {

enum class DemoDomain { story, addition, record, program, dialogue };
inline constexpr std::array kDemoDomains = {DemoDomain::story, DemoDomain::addition,
                                            DemoDomain::record, DemoDomain::program,
                                            DemoDomain::dialogue};
std::string_view to_string(DemoDomain domain);

struct Addition {
  int a = 0, b = 0;  // both two-digit
  friend bool operator==(const Addition&, const Addition&) = default;
};

struct DemoDocument {
  DemoDomain domain{};
  std::string text;
  // -ln of the probability that the generator writes this text and stops: no model of documents
  // can expect to need fewer nats, first token and end of document included.
  double nats = 0;
};

// Documents are independent draws. Those from kDemoValidation on are for validation.
inline constexpr uint64_t kDemoValidation = uint64_t{1} << 32;

class DemoCorpus {
 public:
  explicit DemoCorpus(uint64_t seed);

  // A pure function of (seed, index).
  DemoDocument document(uint64_t index) const;

  // Reads a text back: its domain and nats. Throws Error(input) if the generator never writes it.
  DemoDocument measure(std::string_view text) const;

  // 500 pairs that no document holds, in neither order.
  const std::vector<Addition>& held_out_additions() const { return held_out_; }
  bool is_held_out(Addition addition) const;

 private:
  uint64_t seed_;
  std::vector<Addition> held_out_;
  std::vector<bool> is_held_out_;                      // by 100 * a + b, both orders
  std::vector<std::vector<std::string>> partners_of_;  // per a: every b that may follow it
};

// "Add 47 + 38:", which a trained model continues to "... answer 85."
std::string addition_prompt(Addition addition);
// The document, worked out digit by digit.
std::string addition_text(Addition addition);
// The number after the last "answer " of a generated text, if there is one.
std::optional<int> read_answer(std::string_view generated);

// The start of a document, to show what a trained model makes of it.
std::string demo_prompt(DemoDomain domain);

}  // namespace dsmoe::data

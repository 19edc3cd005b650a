// Choices drawn from the counter-based generator or matched against a text.
#include "data/demo_grammar.h"

#include <numeric>

#include "base/error.h"
#include "base/functions.h"
#include "base/rng.h"

namespace dsmoe::data {
namespace {

constexpr uint64_t kMaxChoices = 256;  // per document: the stride of its random numbers

uint64_t total(std::span<const std::string> options, std::span<const uint32_t> weights) {
  return weights.empty() ? options.size()
                         : std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

}  // namespace

size_t Author::pick(std::span<const std::string> options, std::span<const uint32_t> weights) {
  DSMOE_CHECK(!options.empty() && (weights.empty() || weights.size() == options.size()),
              "{} options with {} weights", options.size(), weights.size());
  const size_t choice = choose(options, weights);
  const double weight = weights.empty() ? 1 : weights[choice];
  nats_ += log_f64(static_cast<double>(total(options, weights)) / weight);
  write(options[choice]);
  return choice;
}

int Author::pick_number(int low, int high) {
  DSMOE_CHECK((low >= 0 && high <= 9) || (low >= 10 && high <= 99),
              "numbers {} to {} differ in length", low, high);
  std::vector<std::string> options;
  for (int n = low; n <= high; ++n) options.push_back(std::to_string(n));
  return low + static_cast<int>(pick(options));
}

size_t WritingAuthor::choose(std::span<const std::string> options,
                             std::span<const uint32_t> weights) {
  DSMOE_CHECK(num_choices_ < kMaxChoices, "more than {} choices in a document", kMaxChoices);
  const Rng rng{.seed = seed_, .purpose = RngPurpose::corpus, .stream = 0};
  uint64_t drawn = rng.below(document_ * kMaxChoices + num_choices_++, total(options, weights));
  if (weights.empty()) return drawn;
  size_t choice = 0;
  for (; drawn >= weights[choice]; ++choice) drawn -= weights[choice];
  return choice;
}

void ReadingAuthor::write(std::string_view fixed) {
  if (!rest_.starts_with(fixed)) {
    fail(ErrorKind::input, "expected \"{}\" at \"{}\"", fixed, rest_.substr(0, 40));
  }
  rest_.remove_prefix(fixed.size());
}

size_t ReadingAuthor::choose(std::span<const std::string> options,
                             std::span<const uint32_t> weights) {
  size_t choice = options.size();
  for (size_t i = 0; i < options.size(); ++i) {
    if (!rest_.starts_with(options[i]) || (!weights.empty() && weights[i] == 0)) continue;
    DSMOE_CHECK(choice == options.size(), "\"{}\" and \"{}\" both fit: the grammar is ambiguous",
                options[choice], options[i]);
    choice = i;
  }
  if (choice == options.size()) {
    fail(ErrorKind::input, "none of {} options (such as \"{}\") fits at \"{}\"", options.size(),
         options[0], rest_.substr(0, 40));
  }
  return choice;
}

}  // namespace dsmoe::data

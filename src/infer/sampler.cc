// Weights relative to the best token; the tail is sorted only as far as the draw needs it.
#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/functions.h"
#include "base/rng.h"

namespace dsmoe::infer {
namespace {

// A draw rarely falls beyond the first few hundred tokens.
constexpr std::size_t kFirstSorted = 256;

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail(ErrorKind::input, "{} is {}, expected {} to {}", name, value, low, high);
  }
}

}  // namespace

bool takes_most_likely(const SamplerOptions& options) {
  return (options.temperature == 0 || options.top_k == 1) && options.repetition_penalty == 1 &&
         options.presence_penalty == 0 && options.frequency_penalty == 0 && options.bias.empty();
}

void check(const SamplerOptions& options, int64_t vocabulary) {
  check_range("temperature", options.temperature, 0, 100);
  check_range("top_p", options.top_p, 0, 1);
  check_range("min_p", options.min_p, 0, 1);
  check_range("repetition_penalty", options.repetition_penalty, 0.01, 100);
  check_range("presence_penalty", options.presence_penalty, -100, 100);
  check_range("frequency_penalty", options.frequency_penalty, -100, 100);
  if (options.top_k < 0) fail(ErrorKind::input, "top_k is {}, expected 0 or more", options.top_k);
  std::vector<int32_t> tokens;
  for (const LogitBias& bias : options.bias) {
    if (bias.token < 0 || bias.token >= vocabulary) {
      fail(ErrorKind::input, "logit_bias names token {}, the vocabulary holds 0 to {}", bias.token,
           vocabulary - 1);
    }
    check_range("logit_bias", bias.bias, -1000, 1000);
    tokens.push_back(bias.token);
  }
  std::sort(tokens.begin(), tokens.end());
  if (const auto twice = std::adjacent_find(tokens.begin(), tokens.end()); twice != tokens.end()) {
    fail(ErrorKind::input, "logit_bias names token {} twice", *twice);
  }
}

Sampler::Sampler(SamplerOptions options, int64_t vocabulary) : options_(std::move(options)) {
  check(options_, vocabulary);
  logits_.resize(static_cast<std::size_t>(vocabulary));
  counts_.resize(static_cast<std::size_t>(vocabulary));
}

void Sampler::adjust(const SampleInput& input) {
  DSMOE_CHECK(input.logits.size() == logits_.size(), "{} logits, the sampler was made for {}",
              input.logits.size(), logits_.size());
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (!std::isfinite(input.logits[i])) {
      fail(ErrorKind::input,
           "the logit of token {} at position {} is not finite; the weights or the activations are "
           "broken (NaN or infinity)",
           i, input.position);
    }
    logits_[i] = input.logits[i];
  }
  const auto once_per_token = [&](std::span<const int32_t> tokens, auto&& change) {
    for (const int32_t token : tokens) {
      if (counts_[token] == 0) continue;
      change(logits_[token], counts_[token]);
      counts_[token] = 0;
    }
  };
  const auto count = [&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) ++counts_[token];
  };
  if (options_.repetition_penalty != 1) {
    count(input.prompt);
    count(input.answer);
    const auto repeat = [&](double& logit, int32_t) {
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    };
    once_per_token(input.prompt, repeat);
    once_per_token(input.answer, repeat);
  }
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) {
    count(input.answer);
    once_per_token(input.answer, [&](double& logit, int32_t times) {
      logit -= options_.presence_penalty + options_.frequency_penalty * times;
    });
  }
  for (const LogitBias& bias : options_.bias) logits_[bias.token] += bias.bias;
}

// Puts the `count` heaviest tokens first, by descending weight, ties by lower id: the same order
// whatever was sorted before.
void Sampler::sort_prefix(std::size_t count) {
  count = std::min(count, weighted_.size());
  if (count <= num_sorted_) return;
  const auto before = [](const Weighted& a, const Weighted& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  const auto begin = weighted_.begin() + static_cast<std::ptrdiff_t>(num_sorted_);
  const auto middle = weighted_.begin() + static_cast<std::ptrdiff_t>(count);
  const auto heavy = gather_heavy(count - num_sorted_);
  if (middle < heavy) std::nth_element(begin, middle, heavy, before);
  std::sort(begin, std::min(middle, heavy), before);
  num_sorted_ = count;
}

// Of the tokens not yet sorted puts some first, none of which is lighter than any other one: at
// least `count`. Returns their end. What a few of them weigh says where to cut, so that one look at
// each token is enough where few are wanted.
std::vector<Sampler::Weighted>::iterator Sampler::gather_heavy(std::size_t count) {
  const auto begin = weighted_.begin() + static_cast<std::ptrdiff_t>(num_sorted_);
  const auto end = weighted_.end();
  const auto available = static_cast<std::size_t>(end - begin);
  constexpr std::size_t kStep = 61;
  const std::size_t rank = 2 * count / kStep + 8;  // among every kStep-th: twice as many as wanted
  if (rank * 4 > available / kStep) return end;
  looked_at_.clear();
  for (std::size_t i = 0; i < available; i += kStep) looked_at_.push_back(begin[i].weight);
  const auto cut = looked_at_.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(looked_at_.begin(), cut, looked_at_.end(), std::greater<>());
  const auto heavy =
      std::partition(begin, end, [least = *cut](const Weighted& w) { return w.weight >= least; });
  return static_cast<std::size_t>(heavy - begin) >= count ? heavy : end;
}

// The number of leading tokens, of the first `available`, whose weights first add up to `mass`.
std::size_t Sampler::shortest_prefix(double mass, std::size_t available) {
  double sum = 0;
  for (std::size_t i = 0; i < available; ++i) {
    if (i == num_sorted_) sort_prefix(std::min(available, std::max(kFirstSorted, 8 * i)));
    sum += weighted_[i].weight;
    if (sum >= mass) return i + 1;
  }
  return available;
}

double Sampler::sum_prefix(std::size_t count) const {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += weighted_[i].weight;
  return sum;
}

int32_t Sampler::sample(const SampleInput& input) {
  adjust(input);
  // max_element returns the first of equals: ties by lower id.
  const auto best = std::max_element(logits_.begin(), logits_.end());
  if (options_.temperature == 0 || options_.top_k == 1) {
    return static_cast<int32_t>(best - logits_.begin());
  }
  const double top = *best;
  for (double& logit : logits_) logit = (logit - top) / options_.temperature;
  exp_f64(logits_);
  weighted_.resize(logits_.size());
  num_sorted_ = 0;
  double total = 0;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    total += logits_[i];
    weighted_[i] = {logits_[i], static_cast<int32_t>(i)};
  }
  std::size_t kept = weighted_.size();
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < kept) {
    kept = static_cast<std::size_t>(options_.top_k);
    sort_prefix(kept);
    total = sum_prefix(kept);
  }
  if (options_.top_p < 1) {
    kept = shortest_prefix(options_.top_p * total, kept);
    total = sum_prefix(kept);
  }
  if (options_.min_p > 0) {
    sort_prefix(kept);
    while (kept > 1 && weighted_[kept - 1].weight < options_.min_p) --kept;
    total = sum_prefix(kept);
  }
  const Rng rng{.seed = input.seed, .purpose = RngPurpose::sampling, .stream = input.choice};
  const double draw = rng.uniform_f64(static_cast<uint64_t>(input.position)) * total;
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    if (i == num_sorted_) sort_prefix(std::min(kept, std::max(kFirstSorted, 8 * i)));
    sum += weighted_[i].weight;
    if (draw < sum) return weighted_[i].token;
  }
  // Rounding can leave the sum an ulp below `total`: the draw belongs to the last token with
  // weight.
  while (kept > 1 && weighted_[kept - 1].weight == 0) --kept;
  return weighted_[kept - 1].token;
}

}  // namespace dsmoe::infer

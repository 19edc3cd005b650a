// What the tokens before change about the logits; the rest is the rule of kernels/sample.h.
#include "infer/sequence/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace dsmoe::infer {
namespace {

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail(ErrorKind::input, "{} is {}, expected {} to {}", name, value, low, high);
  }
}

}  // namespace

bool needs_logits_alone(const SamplerOptions& options) {
  return options.repetition_penalty == 1 && options.presence_penalty == 0 &&
         options.frequency_penalty == 0 && options.bias.empty();
}

kernels::SampleRule sample_rule(const SamplerOptions& options, const DrawKey& key) {
  const Rng rng{.seed = key.seed, .purpose = RngPurpose::sampling, .stream = key.choice};
  const Uint32x4 random = rng.at(static_cast<uint64_t>(key.position));
  // The least float that is not below it.
  auto least = static_cast<float>(options.min_p);
  if (least < options.min_p) least = std::nextafter(least, 2.0f);
  constexpr double kMost = std::numeric_limits<float>::max();
  return {.draw = uint64_t{random.words[1]} << 32 | random.words[0],
          .top_p = options.top_p,
          .scale = static_cast<float>(std::min(kMost, 1 / options.temperature)),
          .least = least,
          .top_k = options.temperature == 0
                       ? 1
                       : static_cast<int32_t>(std::min(options.top_k, kernels::kMostSampled))};
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
           i, input.key.position);
    }
    logits_[i] = input.logits[i];
  }
  const auto change = [&](int32_t token, double logit) {
    constexpr double kMost = std::numeric_limits<float>::max();
    logits_[token] = static_cast<float>(std::clamp(logit, -kMost, kMost));
  };
  const auto once_per_token = [&](std::span<const int32_t> tokens, auto&& changed) {
    for (const int32_t token : tokens) {
      if (counts_[token] == 0) continue;
      change(token, changed(double{logits_[token]}, counts_[token]));
      counts_[token] = 0;
    }
  };
  const auto count = [&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) ++counts_[token];
  };
  if (options_.repetition_penalty != 1) {
    count(input.prompt);
    count(input.answer);
    const auto repeat = [&](double logit, int32_t) {
      return logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    };
    once_per_token(input.prompt, repeat);
    once_per_token(input.answer, repeat);
  }
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) {
    count(input.answer);
    once_per_token(input.answer, [&](double logit, int32_t times) {
      return logit - (options_.presence_penalty + options_.frequency_penalty * times);
    });
  }
  for (const LogitBias& bias : options_.bias) change(bias.token, logits_[bias.token] + bias.bias);
}

void Sampler::hide(std::span<const uint64_t> allowed) {
  for (std::size_t word = 0; word < allowed.size(); ++word) {
    const std::size_t first = word * 64, count = std::min<std::size_t>(64, logits_.size() - first);
    for (std::size_t bit = 0; bit < count; ++bit) {
      if ((allowed[word] >> bit & 1) == 0) {
        logits_[first + bit] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

int32_t Sampler::sample(const SampleInput& input) {
  adjust(input);
  hide(input.allowed);
  // max_element returns the first of equals: ties by lower id.
  const auto best = std::max_element(logits_.begin(), logits_.end()) - logits_.begin();
  return kernels::sample_row(logits_, static_cast<int32_t>(best), sample_rule(options_, input.key));
}

}  // namespace dsmoe::infer

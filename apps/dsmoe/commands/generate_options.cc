// Sampling flags -> options of a generation.
#include "commands/generate_options.h"

#include <charconv>
#include <random>

#include "base/error.h"

namespace dsmoe::app {
namespace {

infer::LogitBias parse_bias(const std::string& text) {
  infer::LogitBias bias;
  const char* end = text.data() + text.size();
  const auto [colon, error] = std::from_chars(text.data(), end, bias.token);
  if (error == std::errc() && colon != end && *colon == ':') {
    const auto [rest, bias_error] = std::from_chars(colon + 1, end, bias.bias);
    if (bias_error == std::errc() && rest == end) return bias;
  }
  fail(ErrorKind::usage, "--logit-bias {}: expected ID:BIAS, such as 42:-5", text);
}

uint64_t random_seed() {
  std::random_device device;
  // 53 bits, so that JSON readers keep it exactly.
  return (static_cast<uint64_t>(device()) << 21) ^ (device() & 0x1fffffu);
}

}  // namespace

void add_sampling_flags(CommandLine& command, SamplingFlags& flags) {
  infer::SamplerOptions& sampler = flags.sampler;
  command.option("--max-tokens", flags.max_tokens, "tokens of the answer; default: as fit")
      .at_least(1)
      .type("N");
  command.option("--temperature", sampler.temperature, "0: always the likeliest; default: 1")
      .range(0.0, 100.0)
      .type("T");
  command.option("--top-k", sampler.top_k, "only the K likeliest tokens").at_least(0).type("K");
  command.option("--top-p", sampler.top_p, "only the likeliest tokens that hold P together")
      .range(0.0, 1.0)
      .type("P");
  command.option("--min-p", sampler.min_p, "only tokens P times as likely as the best")
      .range(0.0, 1.0)
      .type("P");
  command
      .option("--repetition-penalty", sampler.repetition_penalty,
              "above 1: tokens of prompt and answer become less likely")
      .range(0.01, 100.0)
      .type("R");
  command
      .option("--presence-penalty", sampler.presence_penalty,
              "subtracted from logits of tokens in the answer")
      .range(-100.0, 100.0)
      .type("X");
  command
      .option("--frequency-penalty", sampler.frequency_penalty,
              "the same, for each time they occur")
      .range(-100.0, 100.0)
      .type("X");
  command.option("--logit-bias", flags.bias, "added to a token's logit; repeatable")
      .type("ID:BIAS")
      .repeatable();
  command.option("--stop", flags.stops, "end the answer before this text; repeatable")
      .type("TEXT")
      .repeatable();
  command.option("--seed", flags.seed, "same seed, same answer; default: random").type("N");
  command
      .option("--num-experts-per-tok", flags.experts_per_token,
              "routed experts per token; default: config")
      .at_least(1)
      .type("K");
}

infer::GenerateOptions generate_options(const SamplingFlags& flags,
                                        const model::ModelConfig& config) {
  infer::GenerateOptions options{.sampler = flags.sampler,
                                 .seed = flags.seed ? *flags.seed : random_seed(),
                                 .max_tokens = flags.max_tokens};
  for (const std::string& bias : flags.bias) options.sampler.bias.push_back(parse_bias(bias));
  for (const int64_t id : config.eos_token_ids) {
    options.stop_ids.push_back(static_cast<int32_t>(id));
  }
  infer::check(options.sampler, config.vocab_size);
  return options;
}

std::string describe_speed(const infer::Generation& generation, uint64_t seed) {
  // The first token of an answer is the prompt's work: alone it has no speed.
  const auto part = [](int64_t tokens, const std::string& more, double rate) {
    return fmt::format("{} token{}{}{}", tokens, tokens == 1 ? "" : "s", more,
                       rate > 0 ? fmt::format(", {:.1f} tokens/s", rate) : "");
  };
  const std::string reused =
      generation.reused_tokens > 0 ? fmt::format(" ({} kept)", generation.reused_tokens) : "";
  return fmt::format(
      "prompt {}; answer {}; seed {}",
      part(generation.prompt_tokens, reused, generation.prompt_rate()),
      part(static_cast<int64_t>(generation.tokens.size()), "", generation.answer_rate()), seed);
}

}  // namespace dsmoe::app

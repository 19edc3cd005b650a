// Flags of sampling, shared by generate and chat.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/command_line.h"
#include "infer/sequence/generate.h"

namespace dsmoe::app {

struct SamplingFlags {
  infer::SamplerOptions sampler;
  std::vector<std::string> bias;  // "ID:BIAS"
  std::vector<std::string> stops;
  std::optional<uint64_t> seed;  // absent: a random one, said on stderr
  int64_t max_tokens = 0;
  int64_t experts_per_token = 0;
};

void add_sampling_flags(CommandLine& command, SamplingFlags& flags);

// Everything but `cancelled`; the end-of-text ids come from the config.
infer::GenerateOptions generate_options(const SamplingFlags& flags,
                                        const model::ModelConfig& config);

// "prompt 12 tokens, 345 tokens/s; answer 40 tokens, 56 tokens/s; seed 7"
std::string describe_speed(const infer::Generation& generation, uint64_t seed);

}  // namespace dsmoe::app

// How answers are drawn where a request does not say it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "infer/sequence/sampler.h"

namespace dsmoe::serve {

struct SamplingDefaults {
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};
};

// What generation_config.json of a model folder says; nothing where there is none. Throws
// Error(input) for values that cannot be.
SamplingDefaults read_generation_config(const std::filesystem::path& folder);

// The first that says something: the server's flags, the folder, the model's own distribution.
infer::SamplerOptions sampler_options(const SamplingDefaults& flags,
                                      const SamplingDefaults& folder);

}  // namespace dsmoe::serve

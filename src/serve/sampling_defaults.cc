// generation_config.json, field by field.
#include "serve/sampling_defaults.h"

#include <algorithm>

#include "base/json.h"
#include "base/mapped_file.h"
#include "serve/api_error.h"
#include "serve/json_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

SamplingDefaults read_fields(const Json& config) {
  return {.temperature = number_field(config, "temperature", {0, 100}),
          .top_p = number_field(config, "top_p", {0, 1}),
          .min_p = number_field(config, "min_p", {0, 1}),
          .repetition_penalty = number_field(config, "repetition_penalty", {0.01, 100}),
          .top_k = integer_field(config, "top_k", {-1, int64_t{1} << 31})};
}

}  // namespace

SamplingDefaults read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  if (!is_listed(path)) return {};
  const Json config = parse_json(read_small_file(path, kMaxBytes), path.string());
  if (!config.is_object()) {
    fail(ErrorKind::input, "{}: expected a JSON object, found {}", path.string(),
         config.type_name());
  }
  try {
    return read_fields(config);
  } catch (const ApiError& e) {
    fail(ErrorKind::input, "{}: {}", path.string(), e.what());
  }
}

infer::SamplerOptions sampler_options(const SamplingDefaults& flags,
                                      const SamplingDefaults& folder) {
  infer::SamplerOptions sampler;
  const auto set = [](const auto& flag, const auto& given, auto& target) {
    if (flag || given) target = flag ? *flag : *given;
  };
  set(flags.temperature, folder.temperature, sampler.temperature);
  set(flags.top_p, folder.top_p, sampler.top_p);
  set(flags.min_p, folder.min_p, sampler.min_p);
  set(flags.repetition_penalty, folder.repetition_penalty, sampler.repetition_penalty);
  set(flags.top_k, folder.top_k, sampler.top_k);
  sampler.top_k = std::max<int64_t>(0, sampler.top_k);  // -1: all
  return sampler;
}

}  // namespace dsmoe::serve

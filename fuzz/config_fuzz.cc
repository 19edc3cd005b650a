// parse_config: any text is refused by Error(input), or is a configuration that survives saving and
// whose tensors add up.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsmoe::model::ModelConfig config;
  try {
    config = dsmoe::model::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const dsmoe::Error& e) {
    if (e.kind() != dsmoe::ErrorKind::input) std::abort();
    return 0;
  }
  const dsmoe::Json saved = config.to_json();
  if (dsmoe::model::parse_config(saved.dump(), "saved").to_json() != saved) std::abort();
  if (config.num_active_parameters() > config.num_parameters() || config.num_parameters() <= 0)
    std::abort();
  if (config.num_tensors() > 2000) return 0;  // enough tensors to be sure, few enough to be quick
  int64_t count = 0;
  const auto specs = dsmoe::model::expected_tensors(config);
  for (const auto& spec : specs) count += spec.shape.num_elements();
  if (count != config.num_parameters()) std::abort();
  if (static_cast<int64_t>(specs.size()) != config.num_tensors()) std::abort();
  return 0;
}

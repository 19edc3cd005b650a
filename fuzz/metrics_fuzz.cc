// parse_metrics: any text is refused by Error(input), or is steps that ascend with the same layers.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "train/metrics_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<dsmoe::train::LoggedStep> steps;
  try {
    steps = dsmoe::train::parse_metrics(stream, "fuzz");
  } catch (const dsmoe::Error& e) {
    if (e.kind() != dsmoe::ErrorKind::input) std::abort();
    return 0;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!std::isfinite(steps[i].loss) || !std::isfinite(steps[i].seconds)) std::abort();
    if (i == 0) continue;
    if (steps[i].step <= steps[i - 1].step) std::abort();
    if (steps[i].layers.size() != steps[i - 1].layers.size()) std::abort();
  }
  return 0;
}

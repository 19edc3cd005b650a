// Globs by POSIX fnmatch.
#include "train/name_pattern.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"

namespace dsmoe::train {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<tensor::TensorSpec> select_tensors(std::span<const tensor::TensorSpec> tensors,
                                               std::span<const std::string> patterns) {
  for (const std::string& pattern : patterns) {
    const bool any = std::any_of(tensors.begin(), tensors.end(),
                                 [&](const auto& spec) { return matches(pattern, spec.name); });
    if (!any) {
      fail(ErrorKind::usage,
           "--train {}: no tensor of this model matches; names look like "
           "model.layers.1.mlp.experts.0.up_proj.weight",
           pattern);
    }
  }
  std::vector<tensor::TensorSpec> selected;
  for (const tensor::TensorSpec& spec : tensors) {
    const bool wanted =
        patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
          return matches(pattern, spec.name);
        });
    if (wanted) selected.push_back(spec);
  }
  return selected;
}

}  // namespace dsmoe::train

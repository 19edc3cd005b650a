// What GGUF files call tensors: a table per architecture.
#pragma once

#include <string>
#include <string_view>

#include "model/parameter_names.h"

namespace dsmoe::model {

// Softmax scores, gates as they are; heads fill the hidden size.
inline constexpr std::string_view kDeepseekArch = "deepseek";
// Any scores with a selection bias, gates normalised or not, norms of heads, rotation in part.
inline constexpr std::string_view kGlm4MoeArch = "glm4moe";
// Softmax scores, normalised gates, norms of heads, no shared experts.
inline constexpr std::string_view kQwen3MoeArch = "qwen3moe";

struct GgufArchitecture {
  std::string_view name;
  NameMap names;
};
// nullptr: one that is not read.
const GgufArchitecture* find_architecture(std::string_view name);
std::string names_of_architectures();  // "a" or "b"

}  // namespace dsmoe::model

// Which passes memory is taken for, and when weight gradients are made.
#pragma once

#include <cstdint>

namespace dsmoe::kernels {

enum class Passes : uint8_t { forward, forward_and_backward };

// Gradients are made as they come, or beside what follows (kernels/beside.h). In the second case
// what they read has memory of its own.
enum class GradientWork : uint8_t { in_turn, beside };

}  // namespace dsmoe::kernels

// Attempt: what a kernel that fuses several ops says of a call.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsmoe::kernels {

// It ran, or it says why not and has done nothing: then the ops themselves follow, with the same
// bits. The text is a literal.
struct [[nodiscard]] Attempt {
  const char* declined = nullptr;

  bool ran() const { return declined == nullptr; }
};

// Whether the step of so many rows ran in one launch. DSMOE_EXPLAIN=1 prints the answer.
bool ran(std::string_view step, int64_t rows, const Attempt& attempt);

}  // namespace dsmoe::kernels

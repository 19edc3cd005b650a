// Runs a reader on a bad file in a child process whose memory is limited, and tells how it ended.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace dsmoe::malformed {

// What a bad file may cost beyond its own size.
inline constexpr std::size_t kMemoryBudget = std::size_t{64} << 20;

struct Refusal {
  bool refused = false;  // the reader threw Error(input)
  std::string
      text;  // its message, or what happened instead: "accepted", "out of memory", "signal 11", ...
};

// The child may map `file_bytes` + kMemoryBudget more than it has at its start; sanitizers reserve
// memory of their own, so under them there is no limit. It is killed after 60 seconds.
Refusal run_limited(const std::function<void()>& read, std::size_t file_bytes);

// Asserts that `read` is refused in one short line that contains `fault`.
void expect_refused(const std::function<void()>& read, std::size_t file_bytes,
                    const std::string& fault);

}  // namespace dsmoe::malformed

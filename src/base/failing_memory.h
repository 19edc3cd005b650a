// For tests: allocations that fail. Link failing_memory.cc into the test: it replaces operator new.
#pragma once

#include <cstdint>

namespace dsmoe {

// While one lives, of the allocations that the test is concerned with `count` fail, after the
// `first` ones. One at a time.
class FailingMemory {
 public:
  FailingMemory(int64_t first, int64_t count);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  bool has_failed() const { return num_asked() > first_; }
  int64_t num_asked() const;  // allocations it was concerned with

  // Asked at every allocation, by the thread that makes it; must not allocate. `spares` is asked
  // where one would fail: true lets it pass.
  using Rule = bool (*)();
  static void concerns(Rule rule, Rule spares = nullptr);

 private:
  int64_t first_;
};

}  // namespace dsmoe

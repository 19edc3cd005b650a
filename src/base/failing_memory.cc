// operator new with a countdown.
#include "base/failing_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

using Rule = dsmoe::FailingMemory::Rule;

// Counted down by the allocations that concern a test; at and below zero they fail, as many as are
// to fail.
std::atomic<int64_t> until_failure{0};
std::atomic<int64_t> num_failures{0};
std::atomic<Rule> concerned{nullptr}, spared{nullptr};

bool fails() {
  if (num_failures.load() <= 0) return false;
  const Rule is_concerned = concerned.load(), is_spared = spared.load();
  return is_concerned != nullptr && is_concerned() && until_failure.fetch_sub(1) <= 0 &&
         num_failures.fetch_sub(1) > 0 && (is_spared == nullptr || !is_spared());
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails()) throw std::bad_alloc();
  void* memory = nullptr;
  if (::posix_memalign(&memory, std::max(alignment, sizeof(void*)),
                       std::max<std::size_t>(1, size)) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
// Not inlined: the compiler would see free() meet operator new.
[[gnu::noinline]] static void release(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace dsmoe {

FailingMemory::FailingMemory(int64_t first, int64_t count) : first_(first) {
  until_failure = first;
  num_failures = count;
}
FailingMemory::~FailingMemory() { num_failures = 0; }

int64_t FailingMemory::num_asked() const { return first_ - until_failure; }

void FailingMemory::concerns(Rule rule, Rule spares) {
  concerned = rule;
  spared = spares;
}

}  // namespace dsmoe

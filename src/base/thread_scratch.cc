// Huge pages for most of one: rows of a product lie in its caches' sets evenly only where their
// pages do.
#include "base/thread_scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace dsmoe {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

thread_local std::unique_ptr<void, Free> memory;
thread_local std::size_t capacity = 0;

void grow(std::size_t bytes) {
  const std::size_t page = bytes < kHugePage / 2 ? kPage : kHugePage;
  const std::size_t rounded = (bytes + page - 1) / page * page;
  memory.reset(std::aligned_alloc(page, rounded));
  capacity = memory == nullptr ? 0 : rounded;
  if (memory == nullptr)
    fail(ErrorKind::resource, "no memory for {} bytes of scratch in a thread", rounded);
  if (page == kHugePage) ::madvise(memory.get(), rounded, MADV_HUGEPAGE);
}

}  // namespace

void* thread_scratch_bytes(std::size_t bytes) {
  if (capacity < bytes) grow(bytes);
  return memory.get();
}

}  // namespace dsmoe

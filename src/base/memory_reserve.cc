// A mapping, and a new-handler that unmaps it.
#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <new>

namespace dsmoe {
namespace {

constexpr std::size_t kReserve = std::size_t{64} << 20;
std::atomic<void*> reserve{nullptr};

thread_local int num_keeping = 0;

void give_back() {
  if (num_keeping > 0 && std::uncaught_exceptions() == 0) throw std::bad_alloc();
  void* memory = reserve.exchange(nullptr);
  if (memory == nullptr) throw std::bad_alloc();
  ::munmap(memory, kReserve);
}

}  // namespace

KeepReserve::KeepReserve() { ++num_keeping; }
KeepReserve::~KeepReserve() { --num_keeping; }

void keep_memory_reserve() {
  if (restore_memory_reserve()) std::set_new_handler(give_back);
}

bool restore_memory_reserve() {
  if (reserve.load() != nullptr) return true;
  void* memory =
      ::mmap(nullptr, kReserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (void* other = reserve.exchange(memory); other != nullptr) ::munmap(other, kReserve);
  return true;
}

}  // namespace dsmoe

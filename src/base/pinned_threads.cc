// Affinity masks, set by each thread for itself.
#include "base/pinned_threads.h"

#include "base/cpu_count.h"

namespace dsmoe {

PinnedThreads::PinnedThreads(ThreadPool& pool) : pool_(pool) {
  const std::vector<int> cpus = available_cpus();
  if (cpus.size() < 2 || cpus.size() != static_cast<std::size_t>(pool.num_threads())) return;
  before_.resize(cpus.size());
  pool_.run([&](int thread_idx, int) {
    const auto idx = static_cast<std::size_t>(thread_idx);
    CPU_ZERO(&before_[idx]);
    if (::sched_getaffinity(0, sizeof(cpu_set_t), &before_[idx]) != 0) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpus[idx], &own);
    ::sched_setaffinity(0, sizeof(own), &own);
  });
}

PinnedThreads::~PinnedThreads() {
  if (before_.empty()) return;
  pool_.run([&](int thread_idx, int) {
    const cpu_set_t& before = before_[static_cast<std::size_t>(thread_idx)];
    if (CPU_COUNT(&before) > 0) ::sched_setaffinity(0, sizeof(before), &before);
  });
}

}  // namespace dsmoe

// Affinity masks.
#include "base/pinned_threads.h"

#include "base/cpu_count.h"

namespace dsmoe {

PinnedThreads::PinnedThreads(std::vector<pid_t> threads)
    : threads_(std::move(threads)), cpus_(available_cpus()) {
  if (cpus_.size() < 2 || cpus_.size() != threads_.size()) cpus_.clear();
  before_.reserve(cpus_.size());
}

void PinnedThreads::pin() {
  if (!before_.empty()) return;
  for (std::size_t i = 0; i < cpus_.size(); ++i) {
    cpu_set_t& before = before_.emplace_back();
    CPU_ZERO(&before);
    if (::sched_getaffinity(threads_[i], sizeof(before), &before) != 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpus_[i], &own);
    ::sched_setaffinity(threads_[i], sizeof(own), &own);
  }
}

void PinnedThreads::unpin() {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (CPU_COUNT(&before_[i]) > 0)
      ::sched_setaffinity(threads_[i], sizeof(cpu_set_t), &before_[i]);
  }
  before_.clear();
}

}  // namespace dsmoe

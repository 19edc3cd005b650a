// What the machine can do at most, measured: memory reads and fused multiply-adds.
#pragma once

#include "base/thread_pool.h"

namespace dsmoe::bench {

// Seconds. With one thread: of processor time, so that other programs' turns on the core do not
// count.
double now(const ThreadPool& pool);

// Bytes per second that all threads together read from memory far larger than the caches.
double read_bandwidth(ThreadPool& pool);

// Floating-point operations per second (an FMA counts two) of all threads from registers, with the
// widest vectors.
double fma_peak(ThreadPool& pool);

}  // namespace dsmoe::bench

// Ranks that are threads of one process: the transport of tests.
#pragma once

#include <chrono>

#include "base/function_ref.h"
#include "comm/group.h"

namespace dsmoe::comm {

struct ThreadRanks {
  int size = 1;
  std::chrono::milliseconds deadline{60'000};  // of every wait for another rank
};

// Calls body(group) on as many threads as there are ranks and returns when all are through. Where
// one throws, or waits longer than the deadline, the others are woken with an error that names it;
// what the first one threw is thrown again here.
void run_ranks(const ThreadRanks& ranks, FunctionRef<void(Group&)> body);

}  // namespace dsmoe::comm

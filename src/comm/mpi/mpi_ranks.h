// Ranks that are processes of one MPI job, on one host or several: mpirun, srun.
#pragma once

#include <chrono>
#include <string>

#include "base/function_ref.h"
#include "comm/group.h"
#include "comm/watch.h"

namespace dsmoe::comm {

// Empty where this build has MPI; otherwise why not.
std::string mpi_declined();

struct MpiRanks {
  std::chrono::milliseconds deadline{600'000};  // of every wait for another rank
  WatchTimes watch;  // a rank that is killed, frozen or cut off is found sooner
};

// Starts MPI, calls body(group) for the rank that this process is, and ends MPI. Once per process.
// Where body throws, the other ranks are told and throw an error that names this one; the job is
// then over, MPI is not ended, and the process should end too.
void run_mpi_rank(const MpiRanks& ranks, FunctionRef<void(Group&)> body);

}  // namespace dsmoe::comm

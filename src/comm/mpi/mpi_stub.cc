// A build without MPI.
#include "base/error.h"
#include "comm/mpi/mpi_ranks.h"

namespace dsmoe::comm {

std::string mpi_declined() { return "built without MPI (Debian: libopenmpi-dev)"; }

void run_mpi_rank(const MpiRanks&, FunctionRef<void(Group&)>) {
  fail(ErrorKind::usage, "ranks in processes need MPI: {}", mpi_declined());
}

}  // namespace dsmoe::comm

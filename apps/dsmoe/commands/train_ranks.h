// Who trains: this process alone, its threads as ranks, or a process per rank.
#pragma once

#include <string>

#include "base/function_ref.h"
#include "comm/group.h"
#include "commands/train_options.h"
#include "kernels/context.h"

namespace dsmoe::app {

// The processes that a launcher (mpirun, srun) says it has started; 1 without one. Error(usage)
// where --ranks says otherwise.
int64_t launched_processes(const TrainOptions& options);

// Shards that the command line leaves open: of a run that begins as many as there are ranks, of one
// that goes on those of a run without ranks. Error(usage) where numbers do not fit together.
void fill_ranks(TrainOptions& options);

// --transport mpi without a launcher: becomes mpirun, which starts this command so many times.
// Returns where the program is to go on as it is.
void become_mpirun(const TrainOptions& options, const std::vector<std::string>& words);

// Calls body(group) in this process as one of the ranks that a launcher has started.
void run_as_process(FunctionRef<void(comm::Group& group)> body);

// Calls body(group, context) on a thread for each of --ranks, with the cores shared between them.
void run_as_threads(const TrainOptions& options, const kernels::Context& context, int num_threads,
                    FunctionRef<void(comm::Group& group, const kernels::Context& context)> body);

}  // namespace dsmoe::app

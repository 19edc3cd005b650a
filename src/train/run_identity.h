// What decides the weights of a run, as checkpoints keep it.
#pragma once

#include "train/run.h"
#include "train/run_state.h"

namespace dsmoe::train {

RunIdentity identity_of(const RunOptions& options);

}  // namespace dsmoe::train

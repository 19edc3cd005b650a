// Will the checkpoints of a run fit on the disk? Asked before the first step.
#pragma once

#include <string>

#include "store/checkpoint.h"
#include "train/run.h"

namespace dsmoe::train {

// The most checkpoints at a time that the rest of a run adds to the `num_kept` that are there: as
// many as are kept and the one being written, and every milestone.
int64_t num_checkpoints_added(const RunOptions& options, int64_t steps_done, int64_t num_kept);

struct DiskNeed {
  uint64_t bytes = 0;  // of one checkpoint
  int64_t num_added = 0;
};
struct DiskPlan {
  enum class Kind {
    fits,
    tight,       // older checkpoints will have to go for newer ones
    impossible,  // not even one fits
  };
  Kind kind = Kind::fits;
  std::string message;  // empty: not worth a line
};
DiskPlan plan_disk(const DiskNeed& need, const store::CheckpointRoom& room);

}  // namespace dsmoe::train

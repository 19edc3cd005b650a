// How far the training is that a server waits for.
#pragma once

#include <cstdint>

namespace dsmoe::serve {

struct TrainingProgress {
  int64_t step = 0, total = 0;
  double loss = 0;
  double seconds_left = 0;  // of the steps
};

}  // namespace dsmoe::serve

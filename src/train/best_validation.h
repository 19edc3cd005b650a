// The lowest validation loss so far, and how long ago it was.
#pragma once

#include <cstdint>
#include <optional>

namespace dsmoe::train {

struct BestValidation {
  std::optional<double> loss;
  int64_t step = 0;   // 0: before the first step
  int64_t since = 0;  // validations after it

  // True: this one is the best.
  bool update(int64_t at_step, double new_loss) {
    if (loss && !(new_loss < *loss)) {
      ++since;
      return false;
    }
    *this = {.loss = new_loss, .step = at_step, .since = 0};
    return true;
  }
};

}  // namespace dsmoe::train

// What a person sees of a training run while it goes on.
#pragma once

#include <memory>
#include <string>

#include "base/progress.h"
#include "base/recent_rate.h"
#include "train/run.h"

namespace dsmoe::app {

// The bar, and what it says after the figures. Ctrl-C stops the run.
class TrainDisplay {
 public:
  explicit TrainDisplay(std::string label = "train") : label_(std::move(label)) {}
  train::RunHooks hooks(int64_t total);
  void finish();
  int64_t tokens() const { return tokens_; }   // trained on by this process
  double seconds() const { return seconds_; }  // by the wall clock

 private:
  void show(const train::StepMetrics& metrics, const train::StepResult& result);

  std::unique_ptr<Progress> progress_;
  std::string label_, validation_;
  int64_t tokens_ = 0, last_step_ = 0;
  double seconds_ = 0;
  RecentRate rate_{0, 0};
};

}  // namespace dsmoe::app

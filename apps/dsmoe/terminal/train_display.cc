// A bar with losses and speed.
#include "train_display.h"

#include "base/log.h"
#include "interrupt.h"
#include "output.h"

namespace dsmoe::app {

train::RunHooks TrainDisplay::hooks(int64_t total) {
  return {
      .should_stop = [] { return InterruptScope::flag().load(); },
      .on_step = [this](const train::StepMetrics& metrics,
                        const train::StepResult& result) { show(metrics, result); },
      .on_start =
          [this, total](int64_t done) {
            progress_ = std::make_unique<Progress>(ProgressOptions{
                .label = label_, .total = total, .already_done = done, .unit = "steps"});
          },
      .on_saved = [](const std::filesystem::path& path) { log_debug("saved {}", path.string()); }};
}

void TrainDisplay::finish() {
  if (progress_) progress_->finish();
}

void TrainDisplay::show(const train::StepMetrics& metrics, const train::StepResult& result) {
  if (metrics.validation_loss)
    validation_ = fmt::format(", valid {:.4f}", *metrics.validation_loss);
  tokens_ += result.tokens;
  seconds_ += metrics.seconds;
  const double speed = static_cast<double>(result.tokens) / metrics.seconds;
  progress_->update(metrics.step,
                    fmt::format("loss {:.4f}{}, {} tokens/s", result.language, validation_,
                                with_commas(static_cast<int64_t>(speed))));
}

}  // namespace dsmoe::app

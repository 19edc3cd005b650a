// A bar with losses and speed.
#include "terminal/train_display.h"

#include "base/log.h"
#include "base/readable.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {

train::RunHooks TrainDisplay::hooks(int64_t total) {
  return {
      .should_stop = [] { return InterruptScope::flag().load(); },
      .on_step = [this](const train::StepMetrics& metrics,
                        const train::StepResult& result) { show(metrics, result); },
      .on_start =
          [this, total](int64_t done) {
            last_step_ = total;
            progress_ = std::make_unique<Progress>(ProgressOptions{
                .label = label_, .total = total, .already_done = done, .unit = "steps"});
          },
      .on_saved = [](const std::filesystem::path& path) { log_debug("saved {}", path.string()); }};
}

void TrainDisplay::finish() {
  if (progress_) progress_->finish();
}

void TrainDisplay::show(const train::StepMetrics& metrics, const train::StepResult& result) {
  if (const auto& validation = metrics.measured.validation) {
    validation_ = fmt::format(", valid {:.4f}", validation->loss);
  }
  tokens_ += result.tokens;
  seconds_ += metrics.wall_seconds;
  rate_.add(seconds_, static_cast<double>(tokens_));
  // At the end the speed is that of the whole run.
  const double speed =
      metrics.step == last_step_ ? static_cast<double>(tokens_) / seconds_ : rate_.rate();
  progress_->update(metrics.step,
                    fmt::format("loss {:.4f}{}, {} tokens/s", result.language, validation_,
                                with_commas(static_cast<int64_t>(speed))));
}

}  // namespace dsmoe::app

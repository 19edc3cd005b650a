// Schedules as functions of the step alone, so that a resumed run continues exactly.
#include "train/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/functions.h"

namespace dsmoe::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

double after_warmup(const Schedule& schedule, int64_t step) {
  switch (schedule.kind) {
    case ScheduleKind::constant:
      return 1;
    case ScheduleKind::paper: {
      // In integers: 10 step > 8 total means more than 80 % of the steps lie at or before it.
      double factor = 1;
      if (10 * step > 8 * schedule.total_steps) factor *= 0.316;
      if (10 * step > 9 * schedule.total_steps) factor *= 0.316;
      return factor;
    }
    case ScheduleKind::cosine: {
      const auto span =
          static_cast<double>(std::max<int64_t>(1, schedule.total_steps - schedule.warmup_steps));
      const double way =
          std::clamp(static_cast<double>(step - schedule.warmup_steps) / span, 0.0, 1.0);
      return schedule.min_ratio + (1 - schedule.min_ratio) * 0.5 * (1 + cos_f64(kPi * way));
    }
  }
  return 1;
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::paper:
      return "paper";
    case ScheduleKind::cosine:
      return "cosine";
    case ScheduleKind::constant:
      return "constant";
  }
  return "";
}

ScheduleKind parse_schedule(std::string_view word) {
  for (const ScheduleKind kind :
       {ScheduleKind::paper, ScheduleKind::cosine, ScheduleKind::constant}) {
    if (word == name_of(kind)) return kind;
  }
  fail(ErrorKind::usage, "--schedule {}: expected paper, cosine or constant", word);
}

double Schedule::lr(int64_t step) const {
  const double warm =
      warmup_steps > 0
          ? std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup_steps))
          : 1.0;
  return max_lr * warm * after_warmup(*this, step);
}

}  // namespace dsmoe::train

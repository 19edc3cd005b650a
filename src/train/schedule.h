// The learning rate of each step.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsmoe::train {

// paper: after the warm-up constant, times 0.316 after 80 % of the steps and again after 90 %.
// cosine: after the warm-up down to min_ratio of the maximum at the last step.
enum class ScheduleKind { paper, cosine, constant };

std::string_view name_of(ScheduleKind kind);
// Throws Error(usage) on any other word.
ScheduleKind parse_schedule(std::string_view word);

struct Schedule {
  ScheduleKind kind = ScheduleKind::paper;
  double max_lr = 0;
  int64_t warmup_steps = 0;  // linear: step s of them has s / warmup_steps of the maximum
  int64_t total_steps = 0;
  double min_ratio = 0.1;  // cosine only

  // Steps count from 1; past total_steps the last value stays.
  double lr(int64_t step) const;
};

}  // namespace dsmoe::train

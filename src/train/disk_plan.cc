// Counts of checkpoints, compared with free bytes.
#include "train/disk_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace dsmoe::train {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string size_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes >= kGiB ? fmt::format("{:.1f} GiB", value / static_cast<double>(kGiB))
                       : fmt::format("{:.1f} MiB", value / (1 << 20));
}

// Multiples of `of` among the steps (done, total].
int64_t multiples(int64_t of, int64_t done, int64_t total) { return total / of - done / of; }
// Of both. Their least common multiple may be more than any step.
int64_t multiples_of_both(int64_t a, int64_t b, int64_t done, int64_t total) {
  const int64_t factor = a / std::gcd(a, b);
  return factor > total / b ? 0 : multiples(factor * b, done, total);
}

// Validations that are no saves, each of which may find the best so far.
int64_t validations_between(const RunOptions& options, int64_t done, int64_t total) {
  const int64_t valid = options.valid_every, save = options.save_every;
  if (valid == 0) return 0;
  const int64_t before_end = total - 1;  // the last step is a save
  return multiples(valid, done, before_end) -
         (save > 0 ? multiples_of_both(valid, save, done, before_end) : 0);
}

}  // namespace

int64_t num_checkpoints_added(const RunOptions& options, int64_t steps_done, int64_t num_kept) {
  const int64_t total = options.schedule.total_steps, save = options.save_every;
  const int64_t every = options.retention.every;
  if (steps_done >= total) return 0;
  const bool ends_between = save == 0 || total % save != 0;
  int64_t saves = (save > 0 ? multiples(save, steps_done, total) : 0) + (ends_between ? 1 : 0);
  int64_t milestones = 0;
  if (every > 0) {
    if (save > 0) milestones = multiples_of_both(save, every, steps_done, total);
    if (ends_between && total % every == 0) ++milestones;
  }
  int64_t room = std::max<int64_t>(1, std::min(options.retention.last, total) + 1 - num_kept);
  if (options.keep_best) {
    saves += validations_between(options, steps_done, total);
    ++room;
  }
  return milestones + std::min(saves - milestones, room);
}

DiskPlan plan_disk(const DiskNeed& need, const store::CheckpointRoom& room) {
  if (need.num_added == 0) return {};
  const std::string each = size_text(need.bytes), available = size_text(room.available);
  if (need.bytes > room.available && need.bytes - room.available > room.removable) {
    return {.kind = DiskPlan::Kind::impossible,
            .message = fmt::format("a checkpoint takes {}, {} are free: free {} before training, "
                                   "or choose an --out on another disk",
                                   each, available,
                                   size_text(need.bytes - room.available - room.removable))};
  }
  const auto added = static_cast<uint64_t>(need.num_added);
  const bool fits = need.bytes <= room.available / added;
  std::string message =
      fmt::format("checkpoints take {} each, up to {} more at a time; {} are free", each,
                  need.num_added, available);
  if (!fits) {
    message += "; older ones are removed when the next one needs their room (--keep, --save-every)";
    return {.kind = DiskPlan::Kind::tight, .message = std::move(message)};
  }
  // A line only for models whose checkpoints a disk notices.
  if (need.bytes < kGiB && need.bytes <= room.available / 10 / added) message.clear();
  return {.message = std::move(message)};
}

}  // namespace dsmoe::train

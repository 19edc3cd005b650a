// What follows from a run's options, and what is wrong with them.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "train/run.h"

namespace dsmoe::train {

int64_t rows_of_about(int64_t batch, int64_t seq, int64_t tokens) {
  int64_t rows = std::clamp<int64_t>(tokens / seq, 1, batch);
  while (batch % rows != 0) --rows;
  return rows;
}

int64_t rows_per_balance_group(const RunOptions& options) {
  const bool is_balanced = options.config.aux_loss_alpha != 0 || options.device_alpha != 0;
  if (options.config.seq_aux || !is_balanced) return 1;
  return options.balance_group > 0 ? options.balance_group
                                   : rows_of_about(options.batch, options.seq, 4096);
}

int64_t default_micro_batch(const RunOptions& options, int64_t tokens) {
  const int64_t group = std::min(rows_per_balance_group(options), options.batch);
  return group * rows_of_about(options.batch / group, options.seq, tokens / group);
}

void check_rows(const RunOptions& o) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail(ErrorKind::usage, "--{} {}: expected at least 1", name, value);
  };
  positive("batch", o.batch);
  positive("micro-batch", o.micro_batch);
  positive("seq", o.seq);
  model::check_context(o.config, o.seq);
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();  // positions are I32
  if (o.micro_batch > kMostTokens / o.seq) {
    fail(ErrorKind::usage, "--micro-batch {} of {} tokens each: at most {} tokens are possible",
         o.micro_batch, o.seq, kMostTokens);
  }
  if (o.batch % o.micro_batch != 0) {
    fail(ErrorKind::usage, "--micro-batch {} does not divide --batch {}", o.micro_batch, o.batch);
  }
  if (o.micro_batch % rows_per_balance_group(o) != 0) {
    fail(
        ErrorKind::usage,
        "--micro-batch {} is no multiple of the {} rows whose balance is one loss (seq_aux false); "
        "--balance-group sets them, which changes the result",
        o.micro_batch, rows_per_balance_group(o));
  }
  if (o.device_alpha != 0 && o.config.n_routed_experts % o.num_devices != 0) {
    fail(ErrorKind::usage, "--devices {} does not divide the {} routed experts", o.num_devices,
         o.config.n_routed_experts);
  }
}

void check_start(const RunOptions& options) {
  if (!options.resume && store::has_checkpoints(options.out)) {
    fail(ErrorKind::input,
         "{}: already holds checkpoints; add --resume to go on from them, or choose "
         "another --out",
         options.out.string());
  }
}

}  // namespace dsmoe::train

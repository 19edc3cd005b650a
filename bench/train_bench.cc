// Training steps of a config: tokens/s, and the share of what the machine's matrix units can do.
// train_bench CONFIG [threads] [batch] [seq] [steps] [ops]
// ops: of so many more steps the time of each op.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/table.h"
#include "model/initialise.h"
#include "op_times.h"
#include "train/sources.h"
#include "train/step.h"
#include "turns.h"

namespace dsmoe::bench {
namespace {

using kernels::cpu::MatrixType;

class OpTimer {
 public:
  explicit OpTimer(const kernels::Context& context)
      : pool_(*context.pool), start_(kernels::cpu::now(pool_)) {}
  double milliseconds() const { return (kernels::cpu::now(pool_) - start_) * 1e3; }

 private:
  const ThreadPool& pool_;
  double start_;
};

constexpr int64_t kRowsAtATime = 8;

// Rows of one document each.
train::StepRows random_rows(const model::ModelConfig& config, int64_t batch, int64_t seq,
                            uint64_t step) {
  const Rng rng{.seed = step, .purpose = RngPurpose::test};
  train::StepRows rows;
  for (int64_t i = 0; i <= batch * seq; ++i) {
    const auto id = static_cast<int32_t>(
        rng.below(static_cast<uint64_t>(i), static_cast<uint64_t>(config.vocab_size)));
    if (i < batch * seq) rows.tokens.push_back(id);
    if (i > 0) rows.targets.push_back(id);
  }
  rows.row_lengths.assign(static_cast<std::size_t>(batch), static_cast<int32_t>(seq));
  rows.document_lengths = rows.row_lengths;
  rows.documents_per_row.assign(static_cast<std::size_t>(batch), 1);
  return rows;
}

int run(int argc, char** argv) {
  if (argc < 2)
    fail(ErrorKind::usage, "usage: train_bench CONFIG [threads] [batch] [seq] [steps] [ops]");
  const auto number = [&](int idx, int64_t absent) {
    return argc > idx ? std::strtoll(argv[idx], nullptr, 10) : absent;
  };
  const std::string text = read_small_file(argv[1], std::size_t{1} << 20);
  const model::ModelConfig config = model::parse_config(text, argv[1]);
  ThreadPool pool(static_cast<int>(number(2, 0)));
  const int64_t batch = number(3, 8), seq = number(4, 256), steps = number(5, 15);
  const int timed_steps = static_cast<int>(number(6, 0));
  kernels::KernelTable table = kernels::select_cpu_table();
  const kernels::Context context{.table = &table, .pool = &pool};

  model::InitialWeights initial(config, 1);
  train::RoundedParameters stored(initial, config);
  const auto model = model::make_model(
      context, config, stored,
      {.operand = config.torch_dtype, .context = seq, .passes = moe::Passes::forward_and_backward});
  train::Trainer trainer(context, *model, [](const std::string&) { return true; }, initial,
                         {.losses = {.balance_alpha = config.aux_loss_alpha},
                          .rows_per_micro_batch = std::min(batch, kRowsAtATime),
                          .max_row_tokens = seq});

  // The limit is measured between the steps: what else the machine does slows both.
  kernels::cpu::MatrixProbe probe(
      pool, config.torch_dtype == tensor::DType::BF16 ? MatrixType::bf16 : MatrixType::fp32);
  std::vector<double> rates;
  Turns turns;
  for (int64_t step = 0; step < steps; ++step) {
    const train::StepRows rows = random_rows(config, batch, seq, static_cast<uint64_t>(step));
    turns.take();
    probe.measure(0.05);
    const double start = kernels::cpu::now(pool);
    trainer.step(rows, 1e-3);
    if (step > 0) {
      rates.push_back(static_cast<double>(batch * seq) / (kernels::cpu::now(pool) - start));
    }
  }
  const double rate = kernels::cpu::median_of(rates);
  const double best = *std::max_element(rates.begin(), rates.end());
  // One product forward is two back; a token attends to half of its row on average.
  const double flops = rate * 3 * config.forward_flops_per_token(seq / 2);
  fmt::print("dsmoe {} {}, {} threads: {:.0f} tokens/s (fastest step {:.0f}), {:.1f} GFLOP/s",
             context.table->name, tensor::name_of(config.torch_dtype), pool.num_threads(), rate,
             best, flops / 1e9);
  if (probe.median() > 0) {
    fmt::print(", {:.0f} % of {:.0f} GFLOP/s ({})", 100 * flops / probe.median(),
               probe.median() / 1e9, probe.name());
  }
  fmt::print("\n");
  if (timed_steps > 0) {
    OpTimes<OpTimer> times(table);
    for (int step = 0; step < timed_steps; ++step)
      trainer.step(random_rows(config, batch, seq, static_cast<uint64_t>(step)), 1e-3);
    times.print(timed_steps);
  }
  return 0;
}

}  // namespace
}  // namespace dsmoe::bench

int main(int argc, char** argv) {
  try {
    return dsmoe::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_bench: {}\n", error.what());
    return 1;
  }
}

// One MoE layer forward on the CPU in bf16: milliseconds, and the share of what the machine can do.
// layer_bench CONFIG [threads] [tokens...]
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/rng.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/pack.h"
#include "kernels/table.h"
#include "model/config.h"
#include "moe/layer.h"
#include "turns.h"

namespace dsmoe::bench {
namespace {

using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;

constexpr int kRuns = 15;

class Layer {
 public:
  Layer(const kernels::Context& context, const model::ModelConfig& config, int64_t tokens)
      : context_(context), config_(config), tokens_(tokens) {
    numbers_.resize(1 << 22);
    const Rng rng{.seed = 1, .purpose = RngPurpose::test};
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i] = tensor::to_bf16((rng.uniform_f32(i) - 0.5f) * 0.1f);
    }
    weights_.centroids = stack(DType::F32, 1, config.n_routed_experts, config.hidden_size);
    weights_.routed = experts(config.n_routed_experts, config.moe_intermediate_size);
    if (config.n_shared_experts > 0) weights_.shared = experts(1, config.shared_width());
    memory_ = moe::allocate_memory({.max_tokens = tokens,
                                    .max_sequences = 1,
                                    .hidden = config.hidden_size,
                                    .num_experts = config.n_routed_experts,
                                    .top_k = config.num_experts_per_tok,
                                    .routed_width = config.moe_intermediate_size,
                                    .shared_width = config.shared_width(),
                                    .operand = DType::BF16},
                                   arena_);
    x_ = arena_.tensor("x", DType::BF16, {tokens, config.hidden_size});
    for (int64_t i = 0; i < x_.num_elements(); ++i) {
      x_.as<tensor::Bf16>()[i] =
          tensor::to_bf16(rng.uniform_f32(static_cast<uint64_t>(i) + (1u << 24)) * 4 - 2);
    }
    residual_ = arena_.tensor("residual", DType::F32, {tokens, config.hidden_size});
    range_ = arena_.tensor("range", DType::I32, {2});
    range_.as<int32_t>()[1] = static_cast<int32_t>(tokens);
  }

  void run() const {
    moe::layer_forward(context_, {.operand = DType::BF16,
                                  .rule = {.top_k = static_cast<int>(config_.num_experts_per_tok)},
                                  .weights = weights_,
                                  .tape = memory_.tape,
                                  .workspace = memory_.workspace,
                                  .x = x_,
                                  .token_range = range_,
                                  .sequence_starts = range_,
                                  .residual = residual_});
  }
  double flops() const {
    return 6.0 * static_cast<double>(tokens_ * config_.hidden_size) *
           static_cast<double>(config_.num_experts_per_tok * config_.moe_intermediate_size +
                               config_.shared_width());
  }
  double bytes() const {  // of the weights that were chosen
    const auto* index = memory_.tape.index.as<int32_t>();
    const std::set<int32_t> chosen(index, index + memory_.tape.index.num_elements());
    return 6.0 * static_cast<double>(config_.hidden_size) *
           static_cast<double>(static_cast<int64_t>(chosen.size()) * config_.moe_intermediate_size +
                               config_.shared_width());
  }

 private:
  // Every matrix at a place of its own in one block of random numbers.
  WeightStack stack(DType dtype, int64_t count, int64_t n, int64_t k) {
    WeightStack stack{
        .dtype = dtype, .layout = context_.table->weight_layout, .count = count, .n = n, .k = k};
    stack.data = arena_.bytes("weights", stack.num_bytes());
    const int64_t rows = static_cast<int64_t>(numbers_.size()) / 2 / k;
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      for (int64_t begin = 0; begin < n; begin += rows) {
        next_ = (next_ + 123'457) % (numbers_.size() / 2);
        kernels::pack_weight(context_, {.source = {.data = numbers_.data() + next_,
                                                   .dtype = DType::BF16,
                                                   .shape = {std::min(rows, n - begin), k}},
                                        .target = stack,
                                        .matrix_idx = matrix,
                                        .row_begin = begin});
      }
    }
    return stack;
  }
  moe::ExpertWeights experts(int64_t count, int64_t width) {
    return {.gate = stack(DType::BF16, count, width, config_.hidden_size),
            .up = stack(DType::BF16, count, width, config_.hidden_size),
            .down = stack(DType::BF16, count, config_.hidden_size, width)};
  }

  const kernels::Context& context_;
  const model::ModelConfig& config_;
  int64_t tokens_;
  tensor::Arena arena_{"layer"};
  std::vector<tensor::Bf16> numbers_;
  std::size_t next_ = 0;
  moe::LayerWeights weights_;
  moe::LayerMemory memory_;
  TensorView x_;         // [tokens, hidden]
  TensorView residual_;  // [tokens, hidden]
  TensorView range_;     // [2]
};

// Probes and runs take turns, so that both meet the same moods of the machine.
void measure(const kernels::Context& context, const model::ModelConfig& config, int64_t tokens) {
  ThreadPool& pool = *context.pool;
  Layer layer(context, config, tokens);
  kernels::cpu::MatrixProbe matrix(pool, kernels::cpu::MatrixType::bf16);
  kernels::cpu::ReadProbe read(pool);
  layer.run();
  std::vector<double> seconds;
  Turns turns;
  for (int i = 0; i < kRuns; ++i) {
    turns.take();
    matrix.measure(0.1);
    read.measure(0.1);
    const double start = kernels::cpu::now(pool);
    layer.run();
    seconds.push_back(kernels::cpu::now(pool) - start);
  }
  const double median = kernels::cpu::median_of(seconds);
  fmt::print("dsmoe {} BF16, {} threads, {} tokens: {:.1f} ms, {:.0f} GFLOP/s", context.table->name,
             pool.num_threads(), tokens, median * 1e3, layer.flops() / median / 1e9);
  if (matrix.median() > 0) {
    const double floor = std::max(layer.flops() / matrix.median(), layer.bytes() / read.median());
    fmt::print(", {:.0f} % of the limit ({:.0f} GFLOP/s {}; {:.1f} GB/s)", 100 * floor / median,
               matrix.median() / 1e9, matrix.name(), read.median() / 1e9);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 2) fail(ErrorKind::usage, "usage: layer_bench CONFIG [threads] [tokens...]");
  const model::ModelConfig config = model::read_config(argv[1]);
  ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 0);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  if (argc < 4) {
    for (const int64_t tokens : {512, 4096}) measure(context, config, tokens);
  }
  for (int i = 3; i < argc; ++i) measure(context, config, std::atoll(argv[i]));
  return 0;
}

}  // namespace
}  // namespace dsmoe::bench

int main(int argc, char** argv) {
  try {
    return dsmoe::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "layer_bench: {}\n", error.what());
    return 1;
  }
}

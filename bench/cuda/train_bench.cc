// Training on a GPU: one MoE layer forward and backward, and whole steps of a model.
//
//   cuda_train_bench layer [--tokens 16384] [--reps 20] [--parts 1]
//     shape of DeepSeek-MoE-16B, rows of 2048 tokens
//   cuda_train_bench step [--rows 16] [--micro-batch 16] [--steps 8] [--recompute]
//     0.97B parameters, 0.19B active, rows of 2048 tokens
//
// Values repeat a pattern of normal numbers. Layer times are CUDA events around `reps` passes after
// a warm-up, in turns with dense products, step times wall clock, both medians; then every op is
// timed by itself. A layer's gradients are written, as by a step's first micro-batch, and, for a
// second figure, added to.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "bench/dense_products.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/cuda/stream/launch.h"
#include "kernels/memory.h"
#include "kernels/ops.h"
#include "model/initialise.h"
#include "moe/layer.h"
#include "op_times.h"
#include "tensor/bf16.h"
#include "train/step.h"

namespace dsmoe {
namespace {

using kernels::Context;
using kernels::DType;
using kernels::Shape;
using kernels::TensorView;
using kernels::WeightStack;

constexpr int64_t kRowTokens = 2048;

class Pattern {
 public:
  Pattern() : values_((std::size_t{1} << 22) - 3) {
    Rng{.seed = 1, .purpose = RngPurpose::test}.fill_normal(0, values_);
  }
  // [count] values times `scale` from somewhere in the pattern, as `dtype`.
  std::vector<std::byte> make(DType dtype, int64_t count, float scale) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * tensor::size_of(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const float v = values_[next_] * scale;
      next_ = next_ + 1 == values_.size() ? 0 : next_ + 1;
      if (dtype == DType::BF16) {
        reinterpret_cast<tensor::Bf16*>(bytes.data())[i] = tensor::to_bf16(v);
      } else {
        reinterpret_cast<float*>(bytes.data())[i] = v;
      }
    }
    return bytes;
  }

 private:
  std::vector<float> values_;
  std::size_t next_ = 0;
};

struct Bench {
  ThreadPool pool{16};
  kernels::KernelTable table = kernels::cuda_table();
  Context context{.table = &table,
                  .pool = &pool,
                  .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  Pattern pattern;

  ~Bench() { kernels::release_cuda_stream(context.stream); }

  TensorView random(tensor::Arena& arena, DType dtype, const Shape& shape, double scale) {
    const TensorView view = arena.tensor("random", dtype, shape);
    // 4 MiB pieces that repeat: the host would otherwise be the slowest part.
    const int64_t piece = std::min<int64_t>(view.num_elements(), (int64_t{1} << 21) - 7);
    const std::vector<std::byte> values = pattern.make(dtype, piece, static_cast<float>(scale));
    for (std::size_t begin = 0; begin < view.num_bytes(); begin += values.size()) {
      context.table->memory.upload(context, values.data(), static_cast<char*>(view.data) + begin,
                                   std::min(values.size(), view.num_bytes() - begin));
    }
    return view;
  }
  WeightStack stack(tensor::Arena& arena, DType dtype, int64_t count, int64_t n, int64_t k) {
    const TensorView view =
        random(arena, dtype, {count * n, k}, 1 / std::sqrt(static_cast<double>(k)));
    return {.data = view.data,
            .dtype = dtype,
            .layout = kernels::WeightLayout::row_major,
            .device = tensor::Device::cuda,
            .count = count,
            .n = n,
            .k = k};
  }
  TensorView integers(tensor::Arena& arena, const std::vector<int32_t>& values) {
    const TensorView view =
        arena.tensor("integers", DType::I32, {static_cast<int64_t>(values.size())});
    kernels::upload(context, values.data(), view);
    return view;
  }
  // Medians over `reps` rounds, all bodies in turn, so that a card that gets hot slows all of them.
  std::vector<double> milliseconds(int reps, const std::vector<std::function<void()>>& bodies) {
    const cudaStream_t stream = kernels::cuda::stream_of(context);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<std::vector<float>> times(bodies.size());
    constexpr int kWarmUp = 3;
    for (int round = -kWarmUp; round < reps; ++round) {
      for (std::size_t i = 0; i < bodies.size(); ++i) {
        cudaEventRecord(begin, stream);
        bodies[i]();
        cudaEventRecord(end, stream);
        cudaEventSynchronize(end);
        float time = 0;
        cudaEventElapsedTime(&time, begin, end);
        if (round >= 0) times[i].push_back(time);
      }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::vector<double> medians;
    for (std::vector<float>& of_body : times) {
      std::sort(of_body.begin(), of_body.end());
      medians.push_back(of_body[of_body.size() / 2]);
    }
    return medians;
  }
};

// Until the stream has done the op.
class StreamTimer {
 public:
  explicit StreamTimer(const Context& context) : stream_(kernels::cuda::stream_of(context)) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    cudaEventRecord(begin_, stream_);
  }
  ~StreamTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  double milliseconds() {
    cudaEventRecord(end_, stream_);
    cudaEventSynchronize(end_);
    float time = 0;
    cudaEventElapsedTime(&time, begin_, end_);
    return time;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Runs `body` with every op of the table timed by itself, and prints the sums.
template <class Body>
void time_ops(Bench& bench, Body&& body) {
  bench::OpTimes<StreamTimer> times(bench.table);
  body();
  times.print(1);
}

void run_layer(int64_t tokens, int reps, int64_t parts) {
  Bench bench;
  constexpr int64_t kHidden = 2048, kWidth = 1408, kExperts = 64, kTopK = 6, kShared = 2816;
  tensor::Arena fixed("weights, inputs and gradients", kernels::cuda_table().allocator);
  tensor::Arena work("working memory", kernels::cuda_table().allocator);
  const auto experts = [&](int64_t count, int64_t width) {
    return moe::ExpertWeights{.gate = bench.stack(fixed, DType::BF16, count, width, kHidden),
                              .up = bench.stack(fixed, DType::BF16, count, width, kHidden),
                              .down = bench.stack(fixed, DType::BF16, count, kHidden, width)};
  };
  const auto gradients = [&](int64_t count, int64_t width) {
    return moe::ExpertGradients{
        .gate = fixed.tensor("gradients", DType::F32, {count, width, kHidden}),
        .up = fixed.tensor("gradients", DType::F32, {count, width, kHidden}),
        .down = fixed.tensor("gradients", DType::F32, {count, kHidden, width})};
  };
  const int64_t sequences = std::max<int64_t>(1, tokens / kRowTokens);
  std::vector<int32_t> starts;
  for (int64_t s = 0; s <= sequences; ++s)
    starts.push_back(static_cast<int32_t>(s * tokens / sequences));
  moe::LayerSize size{.max_tokens = tokens,
                      .max_sequences = sequences,
                      .hidden = kHidden,
                      .num_experts = kExperts,
                      .top_k = kTopK,
                      .routed_width = kWidth,
                      .shared_width = kShared,
                      .operand = DType::BF16,
                      .passes = moe::Passes::forward_and_backward};
  size.parts = moe::parts_that_fit(bench.context, size, parts);
  const moe::LayerMemory memory =
      moe::used_part(moe::allocate_memory(size, work), tokens, sequences, kTopK);
  const kernels::RouterRule rule{.top_k = kTopK};
  const TensorView x = bench.random(fixed, DType::BF16, {tokens, kHidden}, 1);
  const TensorView range = bench.integers(fixed, {0, static_cast<int32_t>(tokens)});
  const TensorView sequence_starts = bench.integers(fixed, starts);
  const moe::LayerForward forward{
      .operand = DType::BF16,
      .rule = rule,
      .weights = {.centroids = bench.stack(fixed, DType::F32, 1, kExperts, kHidden),
                  .routed = experts(kExperts, kWidth),
                  .shared = experts(1, kShared)},
      .tape = memory.tape,
      .workspace = memory.workspace,
      .x = x,
      .token_range = range,
      .sequence_starts = sequence_starts,
      .residual = bench.random(fixed, DType::F32, {tokens, kHidden}, 1)};
  const moe::LayerBackward backward{
      .operand = DType::BF16,
      .rule = rule,
      .balance = {.alpha = 0.001, .group_weight = 1.0 / static_cast<double>(sequences)},
      .weights = {.centroids = transpose_of(forward.weights.centroids),
                  .routed = transpose_of(forward.weights.routed),
                  .shared = transpose_of(forward.weights.shared)},
      .gradients = {.centroids = fixed.tensor("gradients", DType::F32, {1, kExperts, kHidden}),
                    .routed = gradients(kExperts, kWidth),
                    .shared = gradients(1, kShared)},
      .tape = memory.tape,
      .workspace = memory.workspace,
      .row_gradients = memory.gradients,
      .losses = {.balance = fixed.tensor("losses", DType::F64, {2}),
                 .z = fixed.tensor("losses", DType::F64, {1})},
      .x = x,
      .d_out = bench.random(fixed, DType::BF16, {tokens, kHidden}, 0.01),
      .token_range = range,
      .sequence_starts = sequence_starts,
      .d_x = fixed.tensor("input gradient", DType::F32, {tokens, kHidden})};
  // Dense products of the forward pass's FLOPs: all routed rows through one expert, and the shared
  // one.
  const app::Dense library;
  const int64_t rows = tokens * kTopK;
  const TensorView dense_x = bench.random(fixed, DType::BF16, {rows, kHidden}, 1);
  const TensorView dense_y = fixed.tensor("dense", DType::BF16, {rows, 2 * kShared});
  std::vector<app::Dense::Plan> plans;
  if (library) {
    plans = {library.plan(rows, 2 * kWidth, kHidden), library.plan(rows, kHidden, kWidth),
             library.plan(tokens, 2 * kShared, kHidden), library.plan(tokens, kHidden, kShared)};
  }
  const void* dense_weights[] = {forward.weights.routed.gate.data, forward.weights.routed.down.data,
                                 forward.weights.routed.gate.data,
                                 forward.weights.shared.down.data};
  const auto both = [&](kernels::GradientStart start) {
    moe::layer_forward(bench.context, forward);
    moe::LayerBackward pass = backward;
    pass.start = start;
    moe::layer_backward(bench.context, pass);
  };
  const std::vector<double> times = bench.milliseconds(
      reps, {[&] {
               for (std::size_t i = 0; i < plans.size(); ++i)
                 library.run(bench.context, plans[i], dense_x, dense_weights[i], dense_y);
             },
             [&] { moe::layer_forward(bench.context, forward); },
             [&] { both(kernels::GradientStart::from_zero); },
             [&] { both(kernels::GradientStart::from_buffer); }});
  std::printf(
      "layer, %lld tokens, %lld parts: forward %.3f ms, forward and backward %.3f ms (gradients "
      "added to what is there: %.3f ms); %.3f GiB of working memory, ops' own %.3f\n",
      static_cast<long long>(tokens), static_cast<long long>(size.parts), times[1], times[2],
      times[3], static_cast<double>(work.total_bytes()) / (1 << 30),
      static_cast<double>(kernels::cuda::scratch_bytes(bench.context)) / (1 << 30));
  std::printf("dense products of the forward FLOPs: %.3f ms\n", times[0]);
  time_ops(bench, [&] { both(kernels::GradientStart::from_zero); });
}

// The pattern as every tensor of a model.
class PatternTensors : public model::ParameterSource {
 public:
  explicit PatternTensors(Pattern& pattern)
      : values_(pattern.make(DType::F32, int64_t{1} << 22, 0.02f)) {}
  model::StoredTensor tensor(const model::Parameter& parameter) override {
    const auto count = static_cast<std::size_t>(parameter.shape.num_elements());
    if (parameter.initial == model::Initial::ones) {
      ones_.assign(count, 1.0f);
      return {.elements = {.data = ones_.data(), .dtype = DType::F32, .shape = parameter.shape}};
    }
    const std::size_t bytes = count * 4, pattern_bytes = values_.size();
    while (values_.size() < bytes) {
      values_.insert(values_.end(), values_.begin(),
                     values_.begin() + static_cast<std::ptrdiff_t>(
                                           std::min(pattern_bytes, bytes - values_.size())));
    }
    return {.elements = {.data = values_.data(), .dtype = DType::F32, .shape = parameter.shape}};
  }

 private:
  std::vector<std::byte> values_;
  std::vector<float> ones_;
};

model::ModelConfig step_config() {
  model::ModelConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 1024;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 16;
  config.head_dim = 64;
  config.intermediate_size = 2816;
  config.max_position_embeddings = kRowTokens;
  config.torch_dtype = DType::BF16;
  config.n_routed_experts = 64;
  config.n_shared_experts = 2;
  config.num_experts_per_tok = 6;
  config.moe_intermediate_size = 352;
  config.eos_token_ids = {1};
  config.check("bench");
  return config;
}

struct StepBench {
  int64_t rows = 16, micro_batch = 16, steps = 8;
  model::Recompute recompute = model::Recompute::nothing;
};

void run_steps(const StepBench& options) {
  Bench bench;
  const model::ModelConfig config = step_config();
  PatternTensors source(bench.pattern);
  const auto model =
      model::make_model(bench.context, config, source,
                        {.operand = DType::BF16, .passes = moe::Passes::forward_and_backward});
  train::Trainer trainer(bench.context, *model, [](const std::string&) { return true; }, source,
                         {.losses = {.balance_alpha = config.aux_loss_alpha},
                          .rows_per_micro_batch = options.micro_batch,
                          .max_row_tokens = kRowTokens,
                          .recompute = options.recompute});
  std::vector<const tensor::Arena*> arenas = trainer.arenas();
  arenas.insert(arenas.begin(), &model->weights);
  std::printf("%s\n", tensor::budget_table(arenas).c_str());
  const Rng rng{.seed = 3, .purpose = RngPurpose::test};
  uint64_t at = 0;
  const auto make_rows = [&] {
    train::StepRows rows;
    for (int64_t row = 0; row < options.rows; ++row) {
      for (int64_t i = 0; i < kRowTokens; ++i) {
        // Small ids more often, as words are.
        const auto token =
            static_cast<int32_t>(rng.below(at, static_cast<uint64_t>(config.vocab_size)) *
                                 rng.below(at + 1, 4096) / 4096);
        at += 2;
        rows.tokens.push_back(token);
        rows.targets.push_back(token);
      }
      rows.row_lengths.push_back(kRowTokens);
      rows.documents_per_row.push_back(1);
      rows.document_lengths.push_back(kRowTokens);
    }
    return rows;
  };
  std::vector<double> seconds;
  for (int64_t step = 0; step < options.steps; ++step) {
    const train::StepRows rows = make_rows();
    const auto begin = std::chrono::steady_clock::now();
    const train::StepResult& result = trainer.step(rows, 1e-4);
    kernels::synchronize_cuda(bench.context);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    // Digits enough to see whether two versions have the same bits.
    std::printf("step %lld: %.1f ms, loss %.12g, gradient norm %.12g\n",
                static_cast<long long>(step), seconds.back() * 1e3, result.language,
                result.gradient_norm);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("%.3fB parameters, %lld x %lld tokens: %.1f ms, %.0f tokens/s\n",
              static_cast<double>(config.num_parameters()) / 1e9,
              static_cast<long long>(options.rows), static_cast<long long>(kRowTokens),
              median * 1e3, static_cast<double>(options.rows * kRowTokens) / median);
  const train::StepRows rows = make_rows();
  time_ops(bench, [&] { trainer.step(rows, 1e-4); });
}

}  // namespace
}  // namespace dsmoe

int main(int argc, char** argv) {
  const auto number = [&](const char* name, int64_t value) {
    for (int i = 2; i + 1 < argc; ++i) {
      if (std::strcmp(argv[i], name) == 0) return static_cast<int64_t>(std::atoll(argv[i + 1]));
    }
    return value;
  };
  try {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "layer") {
      dsmoe::run_layer(number("--tokens", 16384), static_cast<int>(number("--reps", 20)),
                       number("--parts", 1));
    } else if (what == "step") {
      dsmoe::StepBench options{.rows = number("--rows", 16),
                               .micro_batch = number("--micro-batch", 16),
                               .steps = number("--steps", 8)};
      for (int i = 2; i < argc; ++i) {
        if (std::strcmp(argv[i], "--recompute") == 0)
          options.recompute = dsmoe::model::Recompute::blocks;
      }
      dsmoe::run_steps(options);
    } else {
      std::fprintf(stderr, "usage: cuda_train_bench layer|step [options]\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

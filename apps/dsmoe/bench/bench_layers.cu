// The layer and dense products as captured graphs, timed by events.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "bench/bench_layers.h"
#include "bench/dense_products.h"
#include "kernels/cuda/stream/launch.h"
#include "kernels/recording.h"
#include "kernels/table.h"
#include "moe/layer.h"

namespace dsmoe::app {
namespace {

using kernels::Context;
using kernels::DType;
using kernels::Shape;
using kernels::TensorView;
using kernels::WeightStack;
using kernels::cuda::check;
using kernels::cuda::stream_of;

__global__ void fill_bf16(unsigned short* data, size_t count, float scale,
                          unsigned long long seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned long long h = (i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    h ^= h >> 31;
    h *= 0x94d049bb133111ebull;
    h ^= h >> 29;
    // Sum of four uniforms: close to normal, variance 1/3.
    const float u = (static_cast<float>(h & 0xffff) + static_cast<float>(h >> 16 & 0xffff) +
                     static_cast<float>(h >> 32 & 0xffff) + static_cast<float>(h >> 48)) /
                        65536.0f -
                    2.0f;
    data[i] = static_cast<unsigned short>(__float_as_uint(u * 1.7320508f * scale) >> 16);
  }
}
__global__ void widen_bf16(const unsigned short* from, float* to, size_t count) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    to[i] = __uint_as_float(static_cast<unsigned>(from[i]) << 16);
  }
}

// Memory of one measurement, with random contents.
struct Bench {
  const Context& context;
  tensor::Arena arena{"bench", context.table->allocator};
  unsigned long long seed = 1;

  TensorView empty(DType dtype, const Shape& shape) { return arena.tensor("bench", dtype, shape); }
  TensorView random(const Shape& shape, double scale) {
    const TensorView view = empty(DType::BF16, shape);
    fill_bf16<<<1024, 256, 0, stream_of(context)>>>(static_cast<unsigned short*>(view.data),
                                                    static_cast<size_t>(view.num_elements()),
                                                    static_cast<float>(scale), seed++);
    return view;
  }
  WeightStack stack(int64_t count, int64_t n, int64_t k) {
    const TensorView view = random({count * n, k}, 1 / std::sqrt(static_cast<double>(k)));
    return {.data = view.data,
            .dtype = DType::BF16,
            .layout = kernels::WeightLayout::row_major,
            .device = tensor::Device::cuda,
            .count = count,
            .n = n,
            .k = k};
  }
  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView view = empty(DType::I32, {static_cast<int64_t>(values.size())});
    kernels::upload(context, values.data(), view);
    return view;
  }
};

moe::LayerWeights make_weights(Bench& bench, const LayerShape& shape) {
  moe::LayerWeights weights;
  weights.centroids = bench.stack(1, shape.experts, shape.hidden);
  const TensorView wide = bench.empty(DType::F32, {shape.experts, shape.hidden});
  widen_bf16<<<256, 256, 0, stream_of(bench.context)>>>(
      static_cast<unsigned short*>(weights.centroids.data), wide.as<float>(),
      static_cast<size_t>(wide.num_elements()));
  weights.centroids.data = wide.data;
  weights.centroids.dtype = DType::F32;
  const auto experts = [&](int64_t count, int64_t width) {
    return moe::ExpertWeights{.gate = bench.stack(count, width, shape.hidden),
                              .up = bench.stack(count, width, shape.hidden),
                              .down = bench.stack(count, shape.hidden, width)};
  };
  weights.routed = experts(shape.experts, shape.width);
  if (shape.shared_width > 0) weights.shared = experts(1, shape.shared_width);
  return weights;
}

// Median microseconds of one replay, divided by the number of bodies it holds.
double time_us(const Context& context, const std::vector<std::function<void()>>& bodies) {
  constexpr int kWarmUps = 3, kReplays = 40;
  const auto all = [&] {
    for (const auto& body : bodies) body();
  };
  const kernels::Recording recording(context, all);
  const cudaStream_t stream = stream_of(context);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < kReplays + kWarmUps; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    recording.replay();
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= kWarmUps) times.push_back(ms);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3 / static_cast<double>(bodies.size());
}

// Dense products of the layer's FLOPs: all routed rows through one expert, and the shared expert.
class DenseLayer {
 public:
  DenseLayer(Bench& bench, const Dense& dense, const LayerShape& shape,
             const moe::LayerWeights& weights, int64_t tokens)
      : bench_(bench), dense_(dense), weights_(weights), shared_(shape.shared_width > 0) {
    if (!dense) return;
    const int64_t rows = tokens * shape.top_k;
    x_ = bench.random({rows, shape.hidden}, 1);
    h_ = bench.random({rows, std::max(shape.width, shape.shared_width)}, 1);
    y_ = bench.empty(DType::BF16,
                     {rows, std::max({shape.hidden, 2 * shape.width, 2 * shape.shared_width})});
    plans_.push_back(dense.plan(rows, 2 * shape.width, shape.hidden));
    plans_.push_back(dense.plan(rows, shape.hidden, shape.width));
    if (!shared_) return;
    plans_.push_back(dense.plan(tokens, 2 * shape.shared_width, shape.hidden));
    plans_.push_back(dense.plan(tokens, shape.hidden, shape.shared_width));
  }
  double us() const {
    if (!dense_) return 0;
    return time_us(bench_.context, {[this] {
                     const Context& c = bench_.context;
                     dense_.run(c, plans_[0], x_, weights_.routed.gate.data, y_);
                     dense_.run(c, plans_[1], h_, weights_.routed.down.data, y_);
                     if (!shared_) return;
                     dense_.run(c, plans_[2], x_, weights_.routed.gate.data, y_);
                     dense_.run(c, plans_[3], h_, weights_.shared.down.data, y_);
                   }});
  }

 private:
  Bench& bench_;
  const Dense& dense_;
  const moe::LayerWeights& weights_;
  bool shared_;
  TensorView x_, h_, y_;
  std::vector<Dense::Plan> plans_;
};

__global__ void copy_words(const uint4* from, uint4* to, size_t count) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

// Reads everything, writes next to nothing.
__global__ void read_words(const uint4* from, unsigned* to, size_t count) {
  unsigned sum = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride],
                d = from[i + 3 * stride];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^
           d.w;
  }
  if (sum == 0x12345678) *to = sum;
}

}  // namespace

GpuLimits measure_gpu_limits(const Context& context) {
  Bench bench{context};
  const TensorView from = bench.random({1 << 20, 1024}, 1);
  const TensorView to = bench.empty(DType::BF16, from.shape);
  const auto bytes = static_cast<double>(from.num_bytes());
  const auto* words = static_cast<const uint4*>(from.data);
  const auto blocks = static_cast<unsigned>(kernels::cuda::num_multiprocessors());
  GpuLimits limits;
  limits.copy = 2 * bytes /
                time_us(context, {[&] {
                          copy_words<<<blocks * 16, 512, 0, stream_of(context)>>>(
                              words, static_cast<uint4*>(to.data), from.num_bytes() / 16);
                        }}) *
                1e6;
  limits.read = bytes /
                time_us(context, {[&] {
                          read_words<<<blocks * 8, 512, 0, stream_of(context)>>>(
                              words, static_cast<unsigned*>(to.data), from.num_bytes() / 16);
                        }}) *
                1e6;
  if (const Dense dense; dense) {
    constexpr int64_t kSize = 8192;
    const TensorView x = bench.random({kSize, kSize}, 1), w = bench.random({kSize, kSize}, 1);
    const TensorView y = bench.empty(DType::BF16, {kSize, kSize});
    const Dense::Plan plan = dense.plan(kSize, kSize, kSize);
    limits.dense = 2.0 * kSize * kSize * kSize /
                   time_us(context, {[&] { dense.run(context, plan, x, w.data, y); }}) * 1e6;
  }
  return limits;
}

LayerFigure measure_layer(const Context& context, const LayerShape& shape, int64_t tokens) {
  Bench bench{context};
  const int sets = tokens <= 64 ? 4 : tokens <= 4096 ? 2 : 1;
  std::vector<moe::LayerWeights> weights;
  for (int i = 0; i < (tokens <= 64 ? 4 : 1); ++i) weights.push_back(make_weights(bench, shape));
  const moe::LayerMemory memory = moe::allocate_memory({.max_tokens = tokens,
                                                        .max_sequences = 1,
                                                        .hidden = shape.hidden,
                                                        .num_experts = shape.experts,
                                                        .top_k = shape.top_k,
                                                        .routed_width = shape.width,
                                                        .shared_width = shape.shared_width,
                                                        .operand = DType::BF16},
                                                       bench.arena);
  const TensorView range = bench.integers({0, static_cast<int32_t>(tokens)});
  std::vector<moe::LayerForward> layers;
  for (int i = 0; i < sets; ++i) {
    layers.push_back({.operand = DType::BF16,
                      .rule = {.top_k = static_cast<int>(shape.top_k)},
                      .weights = weights[static_cast<size_t>(i) % weights.size()],
                      .tape = memory.tape,
                      .workspace = memory.workspace,
                      .x = bench.random({tokens, shape.hidden}, 1),
                      .token_range = range,
                      .sequence_starts = range,
                      .residual = bench.empty(DType::F32, {tokens, shape.hidden})});
  }
  std::vector<std::function<void()>> bodies;
  for (const moe::LayerForward& layer : layers) {
    bodies.push_back([&context, &layer] { moe::layer_forward(context, layer); });
  }
  const Dense dense;
  const DenseLayer dense_layer(bench, dense, shape, weights[0], tokens);
  LayerFigure figure{.tokens = tokens};
  time_us(context, bodies);
  const double first = time_us(context, bodies), dense_first = dense_layer.us();
  figure.seconds = std::min(first, time_us(context, bodies)) * 1e-6;
  figure.dense_seconds = std::min(dense_first, dense_layer.us()) * 1e-6;

  std::vector<int32_t> chosen(static_cast<size_t>(tokens * shape.top_k));
  moe::layer_forward(context, layers[0]);
  kernels::download(context, memory.tape.index, chosen.data());
  // No slot without an expert, no row lost on the way: the time is that of the whole layer.
  DSMOE_CHECK(std::count(chosen.begin(), chosen.end(), -1) == 0, "slots without an expert");
  if (tokens > 64) {
    std::vector<int32_t> offsets(static_cast<size_t>(shape.experts) + 1);
    kernels::download(context, memory.tape.plan.expert_offsets, offsets.data());
    DSMOE_CHECK(offsets.back() == tokens * shape.top_k, "{} rows of {}", offsets.back(),
                tokens * shape.top_k);
  }
  figure.experts = static_cast<int64_t>(std::set<int32_t>(chosen.begin(), chosen.end()).size());
  // Zeros are multiplied faster than numbers: tokens that all choose the same experts, or a result
  // of zeros, show that something was lost on the way.
  DSMOE_CHECK(tokens < 4096 || figure.experts == shape.experts,
              "{} tokens chose {} of {} experts: the inputs are not random", tokens, figure.experts,
              shape.experts);
  std::vector<float> row(static_cast<size_t>(shape.hidden));
  kernels::download(context, layers[0].residual.rows(0, 1), row.data());
  DSMOE_CHECK(std::count(row.begin(), row.end(), 0.0f) < shape.hidden / 2,
              "the layer's result is zero: the inputs or weights are");
  const double per_width = 6.0 * static_cast<double>(shape.hidden);
  figure.flops = static_cast<double>(tokens) * per_width *
                 static_cast<double>(shape.width * shape.top_k + shape.shared_width);
  figure.bytes = per_width * static_cast<double>(figure.experts * shape.width + shape.shared_width);
  return figure;
}

}  // namespace dsmoe::app

// One DeepSeekMoE layer on a GPU: time of every op and of the whole layer against the two ceilings
// of the machine.
//
//   layer_bench [--tokens 1,8,64,512,4096,16384] [--ops] [--no-dense] [--reps 40] [--variant N]
//
// The layer (router, plan, up, down, combine) runs as one captured graph per rotating set of
// inputs; up to 64 tokens four layers' weights take turns, so that nothing sits in L2. Dense
// cuBLASLt products of the same FLOPs alternate with it in the same process (libcublasLt.so.13 is
// opened at run time; without it that column is empty).
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_table.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"

namespace dsmoe::kernels {
namespace {

using cuda::check;

constexpr int64_t kHidden = 2048, kWidth = 1408, kExperts = 64, kTopK = 6, kShared = 2816;

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
__global__ void widen(const unsigned short* from, float* to, size_t count) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    to[i] = __uint_as_float(static_cast<unsigned>(from[i]) << 16);
  }
}

struct Device {
  tensor::Arena arena{"bench", cuda_table().allocator};
  unsigned long long seed = 1;

  TensorView random(const Shape& shape, double scale) {
    const TensorView view = arena.tensor("t", DType::BF16, shape);
    fill_bf16<<<1024, 256>>>(static_cast<unsigned short*>(view.data),
                             static_cast<size_t>(view.num_elements()), static_cast<float>(scale),
                             seed++);
    return view;
  }
  WeightStack stack(int64_t count, int64_t n, int64_t k) {
    const TensorView view = random({count * n, k}, 1 / std::sqrt(static_cast<double>(k)));
    return {.data = view.data,
            .dtype = DType::BF16,
            .layout = WeightLayout::row_major,
            .device = tensor::Device::cuda,
            .count = count,
            .n = n,
            .k = k};
  }
  TensorView empty(DType dtype, const Shape& shape) { return arena.tensor("t", dtype, shape); }
};

struct LayerWeights {
  WeightStack centroids, gate, up, down, shared_gate, shared_up, shared_down;
  explicit LayerWeights(Device& d) {
    const TensorView c = d.random({kExperts, kHidden}, 1 / std::sqrt(static_cast<double>(kHidden)));
    const TensorView wide = d.empty(DType::F32, c.shape);
    widen<<<256, 256>>>(static_cast<unsigned short*>(c.data), wide.as<float>(),
                        static_cast<size_t>(c.num_elements()));
    centroids = {.data = wide.data,
                 .dtype = DType::F32,
                 .layout = WeightLayout::row_major,
                 .device = tensor::Device::cuda,
                 .count = 1,
                 .n = kExperts,
                 .k = kHidden};
    gate = d.stack(kExperts, kWidth, kHidden);
    up = d.stack(kExperts, kWidth, kHidden);
    down = d.stack(kExperts, kHidden, kWidth);
    shared_gate = d.stack(1, kShared, kHidden);
    shared_up = d.stack(1, kShared, kHidden);
    shared_down = d.stack(1, kHidden, kShared);
  }
};

// The layer's tensors for one set of inputs.
struct LayerRun {
  TensorView x, affinity, index, gate, bad, starts, offsets, sequence_offsets, token_of_row,
      row_of_slot, residual, one;
  ExpertFamily family[2];
  const LayerWeights* w;

  LayerRun(Device& d, const LayerWeights& weights, int64_t tokens, const LayerRun* share)
      : w(&weights) {
    x = d.random({tokens, kHidden}, 1);
    residual = d.empty(DType::F32, {tokens, kHidden});
    if (share != nullptr) {
      const TensorView own_x = x, own_residual = residual;
      *this = *share;
      x = own_x, residual = own_residual, w = &weights;
    } else {
      affinity = d.empty(DType::F32, {tokens, kExperts});
      index = d.empty(DType::I32, {tokens, kTopK});
      gate = d.empty(DType::F32, {tokens, kTopK});
      bad = d.empty(DType::I32, {1});
      starts = d.empty(DType::I32, {2});
      one = d.empty(DType::I32, {2});
      const int32_t range[2] = {0, static_cast<int32_t>(tokens)};
      check(cudaMemcpy(starts.data, range, 8, cudaMemcpyHostToDevice), "starts");
      check(cudaMemcpy(one.data, range, 8, cudaMemcpyHostToDevice), "starts");
      offsets = d.empty(DType::I32, {kExperts + 1});
      sequence_offsets = d.empty(DType::I32, {kExperts, 2});
      token_of_row = d.empty(DType::I32, {tokens * kTopK});
      row_of_slot = d.empty(DType::I32, {tokens, kTopK});
      family[0].activation = d.empty(DType::BF16, {tokens * kTopK, kWidth});
      family[0].out = d.empty(DType::BF16, {tokens * kTopK, kHidden});
      family[1].activation = d.empty(DType::BF16, {tokens, kShared});
      family[1].out = d.empty(DType::BF16, {tokens, kHidden});
    }
    family[0].gate = w->gate, family[0].up = w->up, family[0].down = w->down;
    family[0].offsets = offsets, family[0].token_of_row = token_of_row;
    family[1].gate = w->shared_gate, family[1].up = w->shared_up, family[1].down = w->shared_down;
    family[1].offsets = one;
  }
  void router(const Context& c) const {
    RouterForward a;
    a.rule.top_k = kTopK;
    a.x = x, a.centroids = w->centroids, a.affinity = affinity, a.index = index, a.gate = gate,
    a.bad_token = bad;
    router_forward(c, a);
  }
  void plan(const Context& c) const {
    plan_build(c, {.index = index,
                   .sequence_starts = starts,
                   .plan = {offsets, sequence_offsets, token_of_row, row_of_slot}});
  }
  void up(const Context& c) const { experts_up_forward(c, {.x = x, .families = family}); }
  void down(const Context& c) const { experts_down_forward(c, {.families = family}); }
  void combine(const Context& c) const {
    CombineForward a;
    a.index = index, a.gate = gate, a.row_of_slot = row_of_slot, a.routed = family[0].out,
    a.shared = family[1].out, a.residual = residual;
    combine_forward(c, a);
  }
  void layer(const Context& c) const { router(c), plan(c), up(c), down(c), combine(c); }
};

struct Graph {
  cudaGraphExec_t exec = nullptr;
  Graph(const Context& context, const std::function<void()>& body) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(cuda::stream_of(context), cudaStreamCaptureModeThreadLocal),
          "capture");
    body();
    check(cudaStreamEndCapture(cuda::stream_of(context), &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "graph");
  }
  Graph(Graph&& other) noexcept : exec(other.exec) { other.exec = nullptr; }
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
};

// Median microseconds of one pass over `bodies` captured as one graph, divided by their number.
double time_us(const Context& context, int reps, const std::vector<std::function<void()>>& bodies) {
  const Graph graph(context, [&] {
    for (const auto& body : bodies) body();
  });
  cudaStream_t stream = cuda::stream_of(context);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < reps + 3; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(graph.exec, stream), "replay");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 3) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3 / static_cast<double>(bodies.size());
}

// y[m, n] = x[m, k] w[n, k]^T through cuBLASLt, its own first choice.
class Dense {
 public:
  explicit Dense(bool wanted) {
    if (!wanted) return;
    library_ = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (library_ == nullptr) return;
    create_ = symbol<decltype(&cublasLtCreate)>("cublasLtCreate");
    create_(&handle_);
    check(cudaMalloc(&workspace_, kWorkspace), "workspace");
  }
  explicit operator bool() const { return library_ != nullptr; }
  struct Plan {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t x, w, y;
    cublasLtMatmulHeuristicResult_t choice;
  };
  Plan plan(int64_t m, int64_t n, int64_t k) {
    Plan p{};
    symbol<decltype(&cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")(
        &p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    symbol<decltype(&cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(
        p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose));
    const auto layout = symbol<decltype(&cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
    layout(&p.w, CUDA_R_16BF, static_cast<uint64_t>(k), static_cast<uint64_t>(n), k);
    layout(&p.x, CUDA_R_16BF, static_cast<uint64_t>(k), static_cast<uint64_t>(m), k);
    layout(&p.y, CUDA_R_16BF, static_cast<uint64_t>(n), static_cast<uint64_t>(m), n);
    cublasLtMatmulPreference_t preference;
    symbol<decltype(&cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")(
        &preference);
    const size_t bytes = kWorkspace;
    symbol<decltype(&cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute")(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
    int found = 0;
    symbol<decltype(&cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic")(
        handle_, p.operation, p.w, p.x, p.y, p.y, preference, 1, &p.choice, &found);
    return p;
  }
  void run(const Context& c, const Plan& p, const TensorView& x, const void* w,
           const TensorView& y) {
    const float one = 1, zero = 0;
    static const auto matmul = symbol<decltype(&cublasLtMatmul)>("cublasLtMatmul");
    matmul(handle_, p.operation, &one, w, p.w, x.data, p.x, &zero, y.data, p.y, y.data, p.y,
           &p.choice.algo, workspace_, kWorkspace, cuda::stream_of(c));
  }

 private:
  static constexpr size_t kWorkspace = 64 << 20;
  template <class F>
  F symbol(const char* name) {
    return reinterpret_cast<F>(dlsym(library_, name));
  }
  void* library_ = nullptr;
  decltype(&cublasLtCreate) create_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

// Dense products of the layer's FLOPs: all routed rows through one expert, and the shared expert.
double dense_us(const Context& c, Device& d, Dense& dense, const LayerWeights& w, int64_t tokens,
                int reps) {
  if (!dense) return 0;
  const int64_t rows = tokens * kTopK;
  const TensorView xr = d.random({rows, kHidden}, 1), hr = d.random({rows, kWidth}, 1),
                   hs = d.random({tokens, kShared}, 1);
  const TensorView yr = d.empty(DType::BF16, {rows, 2 * kWidth}),
                   ys = d.empty(DType::BF16, {tokens, 2 * kShared});
  const auto a = dense.plan(rows, 2 * kWidth, kHidden), b = dense.plan(rows, kHidden, kWidth);
  const auto s = dense.plan(tokens, 2 * kShared, kHidden), t = dense.plan(tokens, kHidden, kShared);
  return time_us(c, reps, {[&] {
                   dense.run(c, a, xr, w.gate.data, yr);
                   dense.run(c, b, hr, w.down.data, yr);
                   dense.run(c, s, xr, w.gate.data, ys);
                   dense.run(c, t, hs, w.shared_down.data, ys);
                 }});
}

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

double read_tb_per_s(const Context& c, Device& d) {
  const TensorView from = d.random({1 << 20, 1024}, 1), to = d.empty(DType::I32, {1});
  const double us = time_us(c, 10, {[&] {
                              read_words<<<132 * 8, 512, 0, cuda::stream_of(c)>>>(
                                  static_cast<const uint4*>(from.data),
                                  static_cast<unsigned*>(to.data), from.num_bytes() / 16);
                            }});
  return static_cast<double>(from.num_bytes()) / us * 1e-6;
}

double copy_tb_per_s(const Context& c, Device& d) {
  const TensorView from = d.random({1 << 20, 1024}, 1), to = d.empty(DType::BF16, {1 << 20, 1024});
  const double us = time_us(c, 10, {[&] {
                              copy_words<<<132 * 16, 512, 0, cuda::stream_of(c)>>>(
                                  static_cast<const uint4*>(from.data),
                                  static_cast<uint4*>(to.data), from.num_bytes() / 16);
                            }});
  return 2.0 * static_cast<double>(from.num_bytes()) / us * 1e-6;
}

void run(const std::vector<int64_t>& tokens_list, bool ops, bool with_dense, int reps) {
  Context c{.table = &cuda_table(), .pool = nullptr, .stream = make_cuda_stream()};
  Dense dense(with_dense);
  double copy = 0;
  double read = 0;
  {
    Device d;
    copy = copy_tb_per_s(c, d);
    read = read_tb_per_s(c, d);
  }
  std::printf("copy (read + written) %.2f TB/s, read alone %.2f; cuBLASLt %s\n", copy, read,
              dense ? "present" : "absent");
  std::printf("%8s %10s %10s %9s %9s %9s %9s %9s | %8s %8s\n", "tokens", "layer us", "dense us",
              "router", "plan", "up", "down", "combine", "TFLOP/s", "TB/s");
  for (const int64_t tokens : tokens_list) {
    Device d;
    const int sets = tokens <= 64 ? 4 : tokens <= 4096 ? 2 : 1;
    std::vector<LayerWeights> weights;
    weights.reserve(4);
    for (int i = 0; i < (tokens <= 64 ? 4 : 1); ++i) weights.emplace_back(d);
    std::vector<LayerRun> runs;
    runs.reserve(4);
    for (int i = 0; i < sets; ++i)
      runs.emplace_back(d, weights[static_cast<size_t>(i) % weights.size()], tokens,
                        i == 0 ? nullptr : &runs[0]);
    check(cudaDeviceSynchronize(), "inputs");
    const auto each = [&](void (LayerRun::*op)(const Context&) const) {
      std::vector<std::function<void()>> bodies;
      for (const LayerRun& r : runs) bodies.push_back([&r, op, &c] { (r.*op)(c); });
      return time_us(c, reps, bodies);
    };
    each(&LayerRun::layer);
    const double layer_first = each(&LayerRun::layer);
    const double dense_first = dense_us(c, d, dense, weights[0], tokens, reps);
    const double layer = std::min(layer_first, each(&LayerRun::layer));
    const double dense_time =
        std::min(dense_first, dense_us(c, d, dense, weights[0], tokens, reps));
    double part[5] = {};
    if (ops) {
      part[0] = each(&LayerRun::router);
      part[1] = each(&LayerRun::plan);
      part[2] = each(&LayerRun::up);
      part[3] = each(&LayerRun::down);
      part[4] = each(&LayerRun::combine);
    }
    // Experts touched: read back from the last plan.
    std::vector<int32_t> offsets(kExperts + 1);
    check(cudaMemcpy(offsets.data(), runs[0].offsets.data, offsets.size() * 4,
                     cudaMemcpyDeviceToHost),
          "offsets");
    int64_t touched = 0;
    for (int64_t e = 0; e < kExperts; ++e)
      touched += offsets[static_cast<size_t>(e) + 1] > offsets[static_cast<size_t>(e)];
    const double flops =
        static_cast<double>(tokens) * (6.0 * kHidden * kWidth * kTopK + 6.0 * kHidden * kShared);
    const double bytes = 2.0 * 3 * kHidden * (static_cast<double>(touched) * kWidth + kShared);
    std::printf(
        "%8ld %10.1f %10.1f %9.1f %9.1f %9.1f %9.1f %9.1f | %8.1f %8.2f  (dense %.1f TFLOP/s; %ld "
        "experts)\n",
        static_cast<long>(tokens), layer, dense_time, part[0], part[1], part[2], part[3], part[4],
        flops / layer * 1e-6, bytes / layer * 1e-6,
        dense_time > 0 ? flops / dense_time * 1e-6 : 0.0, static_cast<long>(touched));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace dsmoe::kernels

int main(int argc, char** argv) {
  std::vector<int64_t> tokens = {1, 8, 64, 512, 4096, 16384};
  bool ops = false;
  bool with_dense = true;
  int reps = 40;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--ops") ops = true;
    if (flag == "--no-dense") with_dense = false;
    if (flag == "--variant" && i + 1 < argc)
      dsmoe::kernels::cuda::force_product_variant(std::atoi(argv[++i]));
    if (flag == "--reps" && i + 1 < argc) reps = std::atoi(argv[++i]);
    if (flag == "--tokens" && i + 1 < argc) {
      tokens.clear();
      for (char* part = std::strtok(argv[++i], ","); part != nullptr;
           part = std::strtok(nullptr, ","))
        tokens.push_back(std::atoll(part));
    }
  }
  try {
    dsmoe::kernels::run(tokens, ops, with_dense, reps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "layer_bench: %s\n", error.what());
    return 1;
  }
}

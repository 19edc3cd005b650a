// What breaks one rule each, of docs/numerics.md or of a contract. Linked into tests only.
#include "kernels/cuda/negative_control.h"

#include "kernels/cuda/cuda_table.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

// One warp: 16 outputs, 8 rows.
__global__ void split_k(const bf16* x, const bf16* w, float* out, int rows, int n, int k) {
  const int lane = threadIdx.x;
  float sum[2][4] = {};
  const auto pair = [&](const bf16* base, int line, int lines, int kk) {
    const auto* bits =
        reinterpret_cast<const unsigned short*>(base) + static_cast<int64_t>(line) * k;
    const uint32_t low = line < lines && kk < k ? bits[kk] : 0;
    const uint32_t high = line < lines && kk + 1 < k ? bits[kk + 1] : 0;
    return low | (high << 16);
  };
  const int first_output = static_cast<int>(blockIdx.x) * 16;
  const int first_row = static_cast<int>(blockIdx.y) * 8;
  for (int k0 = 0; k0 < k; k0 += 16) {
    const int kk = k0 + 2 * (lane % 4);
    const int o = first_output + lane / 4;
    const uint32_t a[4] = {pair(w, o, n, kk), pair(w, o + 8, n, kk), pair(w, o, n, kk + 8),
                           pair(w, o + 8, n, kk + 8)};
    const uint32_t b[2] = {pair(x, first_row + lane / 4, rows, kk),
                           pair(x, first_row + lane / 4, rows, kk + 8)};
    mma_16x8x16(sum[k0 * 2 >= k], a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + 2 * (lane % 4) + i % 2;
    const int o = first_output + lane / 4 + 8 * (i / 2);
    if (row < rows && o < n) out[static_cast<int64_t>(row) * n + o] = sum[0][i] + sum[1][i];
  }
}

__global__ void delay_kernel() {
  const auto nanoseconds = [] {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  };
  for (const uint64_t start = nanoseconds(); nanoseconds() - start < 2'000'000;) __nanosleep(1000);
}

struct EarlyQueue {
  void* stream = nullptr;
};

}  // namespace

void product_split_k(const Context& context, const TensorView& x, const WeightStack& weight,
                     const TensorView& out) {
  const dim3 grid(static_cast<unsigned>((weight.n + 15) / 16),
                  static_cast<unsigned>((x.dim(0) + 7) / 8));
  split_k<<<grid, 32, 0, stream_of(context)>>>(
      static_cast<const bf16*>(x.data), static_cast<const bf16*>(weight.data), out.as<float>(),
      static_cast<int>(x.dim(0)), static_cast<int>(weight.n), static_cast<int>(weight.k));
  check(cudaGetLastError(), "split_k");
}

void delay(const Context& context) {
  delay_kernel<<<1, 1, 0, stream_of(context)>>>();
  check(cudaGetLastError(), "delay");
}

KernelTable table_that_begins_early(const Context& context, void* queue) {
  state_of<EarlyQueue>(context).stream = queue;
  KernelTable table = cuda_table();
  table.beside.begin = [](const Context& own) { return state_of<EarlyQueue>(own).stream; };
  return table;
}

KernelTable table_that_waits_too_little() {
  KernelTable table = cuda_table();
  table.beside.wait = [](const Context& context, BesideWork work) {
    if (work.piece > 1) cuda_table().beside.wait(context, {.piece = work.piece - 1});
  };
  return table;
}

}  // namespace dsmoe::kernels::cuda

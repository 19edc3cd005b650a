// Dense products through cuBLASLt, to measure our own against.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "kernels/context.h"
#include "kernels/cuda/stream/launch.h"
#include "kernels/layout.h"

namespace dsmoe::app {

// y[m, n] = x[m, k] w[n, k]^T through cuBLASLt, its own first choice. The library is opened at run
// time: the program does not need it.
class Dense {
 public:
  Dense() : library_(dlopen("libcublasLt.so.13", RTLD_NOW)) {
    if (library_ == nullptr) return;
    symbol<decltype(&cublasLtCreate)>("cublasLtCreate")(&handle_);
    kernels::cuda::check(cudaMalloc(&workspace_, kWorkspace), "workspace");
  }
  ~Dense() {
    if (library_ == nullptr) return;
    (void)cudaFree(workspace_);
    symbol<decltype(&cublasLtDestroy)>("cublasLtDestroy")(handle_);
  }
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  explicit operator bool() const { return library_ != nullptr; }

  struct Plan {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t x, w, y;
    cublasLtMatmulHeuristicResult_t choice;
  };
  // Plans live as long as the process: a handful per measurement.
  Plan plan(int64_t m, int64_t n, int64_t k) const {
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
    DSMOE_CHECK(found == 1, "cuBLASLt has no product of {} x {} x {}", m, n, k);
    return p;
  }
  void run(const kernels::Context& context, const Plan& p, const kernels::TensorView& x,
           const void* w, const kernels::TensorView& y) const {
    const float one = 1, zero = 0;
    symbol<decltype(&cublasLtMatmul)>("cublasLtMatmul")(
        handle_, p.operation, &one, w, p.w, x.data, p.x, &zero, y.data, p.y, y.data, p.y,
        &p.choice.algo, workspace_, kWorkspace, kernels::cuda::stream_of(context));
  }

 private:
  static constexpr size_t kWorkspace = 64 << 20;
  template <class F>
  F symbol(const char* name) const {
    return reinterpret_cast<F>(dlsym(library_, name));
  }
  void* library_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace dsmoe::app

// Context: what every op needs besides its arguments.
#pragma once

namespace dsmoe {
class ThreadPool;
}

namespace dsmoe::kernels {

struct KernelTable;

struct Context {
  const KernelTable* table = nullptr;
  ThreadPool* pool = nullptr;  // CPU tables
  void* stream = nullptr;      // CUDA table: cudaStream_t
};

}  // namespace dsmoe::kernels

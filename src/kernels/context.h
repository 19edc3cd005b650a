// Context: what every op needs besides its arguments.
#pragma once

namespace dsmoe {
class ThreadPool;
}
namespace dsmoe::comm {
class Group;
}

namespace dsmoe::kernels {

struct KernelTable;

struct Context {
  const KernelTable* table = nullptr;
  ThreadPool* pool = nullptr;  // CPU tables
  void* stream = nullptr;      // CUDA table: of make_cuda_stream
  // The ranks that share the layers' experts; absent: there is one. Ops do not look at it.
  comm::Group* group = nullptr;
};

}  // namespace dsmoe::kernels

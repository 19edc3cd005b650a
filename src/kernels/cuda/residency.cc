// The one stream that may wait inside kernels, and the room a block has.
#include "kernels/cuda/residency.h"

#include <atomic>

#include "kernels/cuda/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

std::atomic<void*> owner{nullptr};

}  // namespace

bool waits_allowed(const Context& context) {
  return context.stream != nullptr && owner.load() == context.stream;
}

void claim_waits(void* stream) {
  void* nobody = nullptr;
  owner.compare_exchange_strong(nobody, stream);
}

void release_waits(void* stream) {
  void* expected = stream;
  owner.compare_exchange_strong(expected, nullptr);
}

int shared_memory_limit() {
  static const int bytes = [] {
    int device = 0;
    int value = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "shared memory of a block");
    return value;
  }();
  return bytes;
}

}  // namespace dsmoe::kernels::cuda

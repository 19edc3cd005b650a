// The one stream that may wait inside kernels.
#include "kernels/cuda/residency.h"

#include <atomic>

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

}  // namespace dsmoe::kernels::cuda

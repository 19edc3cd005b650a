// The second queue as a stream beside each context's own, tied to it by events.
#include <map>
#include <mutex>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kMostUnfinished = 8;  // pieces that may be waited for

struct Beside {
  cudaStream_t stream = nullptr;
  cudaEvent_t begun = nullptr;
  cudaEvent_t ended[kMostUnfinished] = {};
  int pieces = 0;
};
std::mutex mutex;
std::map<void*, Beside>& beside_of_streams() {
  static std::map<void*, Beside> map;
  return map;
}

Beside& beside_of(const Context& context) {
  const std::lock_guard lock(mutex);
  Beside& beside = beside_of_streams()[context.stream];
  if (beside.stream == nullptr) {
    check(cudaStreamCreateWithFlags(&beside.stream, cudaStreamNonBlocking), "stream beside");
    check(cudaEventCreateWithFlags(&beside.begun, cudaEventDisableTiming), "event");
    for (cudaEvent_t& event : beside.ended)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  return beside;
}

}  // namespace

void* begin_beside(const Context& context) {
  const Beside& beside = beside_of(context);
  check(cudaEventRecord(beside.begun, stream_of(context)), "work beside begins");
  check(cudaStreamWaitEvent(beside.stream, beside.begun), "work beside begins");
  return beside.stream;
}

void end_beside(const Context& context) {
  Beside& beside = beside_of(context);
  check(cudaEventRecord(beside.ended[beside.pieces++ % kMostUnfinished], beside.stream),
        "work beside ends");
}

void wait_beside(const Context& context, int pieces) {
  const Beside& beside = beside_of(context);
  DSMOE_CHECK(0 <= pieces && pieces < kMostUnfinished, "{} unfinished pieces, at most {} are known",
              pieces, kMostUnfinished - 1);
  if (beside.pieces <= pieces) return;
  const int last = beside.pieces - 1 - pieces;
  check(cudaStreamWaitEvent(stream_of(context), beside.ended[last % kMostUnfinished]),
        "waiting for work beside");
}

void release_beside(void* stream) {
  const std::lock_guard lock(mutex);
  const auto entry = beside_of_streams().find(stream);
  if (entry == beside_of_streams().end()) return;
  const Beside& beside = entry->second;
  (void)cudaStreamSynchronize(beside.stream);
  release_scratch(beside.stream);
  (void)cudaEventDestroy(beside.begun);
  for (cudaEvent_t event : beside.ended) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(beside.stream);
  beside_of_streams().erase(entry);
}

}  // namespace dsmoe::kernels::cuda

// The second queue as a stream beside each context's own, tied to it by events.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream_state.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kMostUnfinished = 8;  // pieces that may be waited for

struct Beside {
  cudaStream_t stream = nullptr;
  cudaEvent_t begun = nullptr;
  cudaEvent_t ended[kMostUnfinished] = {};
  int pieces = 0;

  Beside() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream beside");
    check(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming), "event");
    for (cudaEvent_t& event : ended)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  Beside(const Beside&) = delete;
  ~Beside() {
    (void)cudaStreamSynchronize(stream);
    release_states(stream);
    (void)cudaEventDestroy(begun);
    for (cudaEvent_t event : ended) (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(stream);
  }
};

}  // namespace

void* begin_beside(const Context& context) {
  const auto& beside = state_of<Beside>(context);
  check(cudaEventRecord(beside.begun, stream_of(context)), "work beside begins");
  check(cudaStreamWaitEvent(beside.stream, beside.begun), "work beside begins");
  return beside.stream;
}

void end_beside(const Context& context) {
  auto& beside = state_of<Beside>(context);
  check(cudaEventRecord(beside.ended[beside.pieces++ % kMostUnfinished], beside.stream),
        "work beside ends");
}

void wait_beside(const Context& context, int pieces) {
  const auto& beside = state_of<Beside>(context);
  DSMOE_CHECK(0 <= pieces && pieces < kMostUnfinished, "{} unfinished pieces, at most {} are known",
              pieces, kMostUnfinished - 1);
  if (beside.pieces <= pieces) return;
  const int last = beside.pieces - 1 - pieces;
  check(cudaStreamWaitEvent(stream_of(context), beside.ended[last % kMostUnfinished]),
        "waiting for work beside");
}

}  // namespace dsmoe::kernels::cuda

// The second queue as a stream beside each context's own, tied to it by events.
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

// Events go round: who waits for a piece whose event a later one has taken waits for that one.
constexpr int64_t kEvents = 8;

struct Beside {
  Stream* stream = make_stream(KernelsThatWait::refused);
  cudaEvent_t begun = nullptr;
  cudaEvent_t ended[kEvents] = {};
  int64_t pieces = 0;

  cudaEvent_t end_of(int64_t piece) const { return ended[piece % kEvents]; }

  Beside() {
    check(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming), "event");
    for (cudaEvent_t& event : ended)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  Beside(const Beside&) = delete;
  ~Beside() {
    release_stream(stream);
    (void)cudaEventDestroy(begun);
    for (cudaEvent_t event : ended) (void)cudaEventDestroy(event);
  }
};

}  // namespace

void* begin_beside(const Context& context) {
  const auto& beside = state_of<Beside>(context);
  check(cudaEventRecord(beside.begun, stream_of(context)), "work beside begins");
  check(cudaStreamWaitEvent(beside.stream->handle, beside.begun), "work beside begins");
  return beside.stream;
}

BesideWork end_beside(const Context& context) {
  auto& beside = state_of<Beside>(context);
  const BesideWork work{.piece = ++beside.pieces};
  check(cudaEventRecord(beside.end_of(work.piece), beside.stream->handle), "work beside ends");
  return work;
}

void wait_beside(const Context& context, BesideWork work) {
  const auto& beside = state_of<Beside>(context);
  DSMOE_CHECK(0 < work.piece && work.piece <= beside.pieces, "piece {} of {} pieces of work beside",
              work.piece, beside.pieces);
  check(cudaStreamWaitEvent(stream_of(context), beside.end_of(work.piece)),
        "waiting for work beside");
  ++own_stream(context).launches;  // what follows does not wait for the last launch alone
}

}  // namespace dsmoe::kernels::cuda

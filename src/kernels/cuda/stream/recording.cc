// Recordings as CUDA graphs, captured from the context's stream.
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {

void begin_recording(const Context& context) {
  check(cudaStreamBeginCapture(stream_of(context), cudaStreamCaptureModeThreadLocal), "recording");
}

void* end_recording(const Context& context) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (cudaStreamEndCapture(stream_of(context), &graph) == cudaSuccess) {
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) executable = nullptr;
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
  return executable;
}

void replay_recording(const Context& context, void* recording) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), stream_of(context)), "replay");
  ++own_stream(context).launches;
}

void release_recording(void* recording) {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording));
}

}  // namespace dsmoe::kernels::cuda

// Streams come with the device memory that their kernels count in: it must be there, and zero,
// before ops are captured into a graph.
#include "kernels/cuda/stream/stream.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {

void* allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    fail(ErrorKind::resource,
         "CUDA: {} bytes of device memory could not be had: {}; use a smaller batch, context or "
         "model",
         bytes, cudaGetErrorString(status));
  }
  check(cudaMemset(data, 0, bytes), "zeroing device memory");
  // The call returns before the device has done it, and streams of contexts do not wait for the
  // default stream: without this an upload could be zeroed after it arrived.
  check(cudaStreamSynchronize(nullptr), "zeroing device memory");
  return data;
}

void release(void* data, std::size_t) { (void)cudaFree(data); }

Stream* make_stream(KernelsThatWait waits) {
  std::unique_ptr<Stream, void (*)(Stream*)> stream(new Stream{.waits = waits}, release_stream);
  check(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking), "stream");
  const Context context{.stream = stream.get()};
  prepare_router(context);
  prepare_products(context);
  prepare_experts(context);
  if (waits_allowed(context)) {
    prepare_few_tokens_ffn(context);
    prepare_few_tokens_head(context);
  }
  return stream.release();
}

void release_stream(Stream* stream) {
  (void)cudaStreamSynchronize(stream->handle);
  stream->states.clear();
  (void)cudaStreamDestroy(stream->handle);
  delete stream;
}

}  // namespace dsmoe::kernels::cuda

// Between host and device memory. Small pieces do without the copy engine, whose start and end cost
// more than they take: up as the parameters of a kernel, down through host memory that a kernel
// writes and the host polls.
#include <atomic>
#include <cstring>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <int kWords>
struct Upload {
  uint32_t* target;
  int count;  // of words
  uint32_t words[kWords];
};

template <int kWords>
__global__ void upload_kernel(const __grid_constant__ Upload<kWords> p) {
  wait_for_previous_kernel();
  for (int i = threadIdx.x; i < p.count; i += kThreads) p.target[i] = p.words[i];
  // Kernels further on may read what was uploaded before they wait for those ahead of them.
  __threadfence();
  let_next_kernel_start();
}

template <int kWords>
void upload_words(const Context& context, const void* host, void* device, std::size_t bytes) {
  Upload<kWords> p;
  p.target = static_cast<uint32_t*>(device);
  p.count = static_cast<int>(bytes / 4);
  std::memcpy(p.words, host, bytes);
  launch(context, {.grid = dim3(1), .block = dim3(kThreads)}, upload_kernel<kWords>, p);
}

// Where the device leaves what the host asked for: a number, then the words.
struct Mailbox {
  static constexpr std::size_t kMaxBytes = 16384;
  static constexpr std::size_t kHeader = 64;
  unsigned char* memory = nullptr;  // the same address on host and device
  uint32_t number = 0;              // of the last download

  Mailbox() {
    check(cudaHostAlloc(&memory, kHeader + kMaxBytes, cudaHostAllocMapped),
          "host memory for downloads");
    std::memset(memory, 0, kHeader);
  }
  Mailbox(const Mailbox&) = delete;
  ~Mailbox() { (void)cudaFreeHost(memory); }

  uint32_t* flag() const { return reinterpret_cast<uint32_t*>(memory); }
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(memory + kHeader); }
};

__global__ void download_kernel(const uint32_t* source, int count, uint32_t* words, uint32_t* flag,
                                uint32_t number) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int i = threadIdx.x; i < count; i += kThreads) words[i] = source[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    *reinterpret_cast<volatile uint32_t*>(flag) = number;
  }
}

// Until the kernel that writes `number` has done so; a device that fails never does.
void wait_for(const Context& context, const Mailbox& mailbox) {
  const std::atomic_ref<uint32_t> flag(*mailbox.flag());
  constexpr int kPolls = 4096;  // between two looks at the stream
  while (true) {
    for (int i = 0; i < kPolls; ++i) {
      if (flag.load(std::memory_order_acquire) == mailbox.number) return;
      __builtin_ia32_pause();
    }
    const cudaError_t status = cudaStreamQuery(stream_of(context));
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check(status, "download");
  }
}

bool is_words(const void* device, std::size_t bytes) {
  return bytes % 4 == 0 && reinterpret_cast<uintptr_t>(device) % 4 == 0;
}

}  // namespace

void upload(const Context& context, const void* host, void* device, std::size_t bytes) {
  if (is_words(device, bytes)) {
    if (bytes <= 1024) return upload_words<256>(context, host, device, bytes);
    if (bytes <= 16384) return upload_words<4096>(context, host, device, bytes);
  }
  // Pageable memory (all that callers have: vectors, mapped files) is copied to the runtime's own
  // buffers before the call returns; no need to wait for the device.
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_of(context)), "upload");
}

void download(const Context& context, const void* device, void* host, std::size_t bytes) {
  if (is_words(device, bytes) && bytes <= Mailbox::kMaxBytes) {
    auto& mailbox = state_of<Mailbox>(context);
    ++mailbox.number;
    launch(context, {.grid = dim3(1), .block = dim3(kThreads)}, download_kernel,
           static_cast<const uint32_t*>(device), static_cast<int>(bytes / 4), mailbox.words(),
           mailbox.flag(), mailbox.number);
    wait_for(context, mailbox);
    std::memcpy(host, mailbox.words(), bytes);
    return;
  }
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_of(context)),
        "download");
  check(cudaStreamSynchronize(stream_of(context)), "download");
}

}  // namespace dsmoe::kernels::cuda

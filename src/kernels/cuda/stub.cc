// The CUDA tier of a build without CUDA.
#include "kernels/cuda/cuda_table.h"

namespace dsmoe::kernels {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorKind::usage,
       "{}; where nvcc is, make cuda builds build-cuda/dsmoe; or use --device cpu",
       cuda_declined());
}

}  // namespace

std::string cuda_declined() { return "built without CUDA"; }
const KernelTable& cuda_table() { refuse(); }
void* make_cuda_stream(KernelsThatWait) { refuse(); }
void release_cuda_stream(void*) {}
void synchronize_cuda(const Context&) { refuse(); }

}  // namespace dsmoe::kernels

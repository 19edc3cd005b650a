// Device memory: what is uploaded stays.
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {

using MemoryCudaTest = CudaTest;

// New memory is zeroed; by the time the caller has it, that must be over. The tensor is long, so
// that zeroing its end takes longer than the upload.
TEST_F(MemoryCudaTest, WhatIsUploadedIsNotZeroedAfterwards) {
  const int64_t size = int64_t{1} << 28;  // 1 GiB of I32
  for (int repetition = 0; repetition < 8; ++repetition) {
    tensor::Arena arena("device", cuda_table().allocator);
    const TensorView whole = arena.tensor("t", DType::I32, {size});
    TensorView last = whole;
    last.shape = {4};
    last.data = whole.as<int32_t>() + size - 4;
    const int32_t values[4] = {1, 2, 3, 4};
    upload(cuda_, values, last);
    synchronize_cuda(cuda_);
    EXPECT_EQ(integers_of(last), (std::vector<int32_t>{1, 2, 3, 4}));
  }
}

}  // namespace dsmoe::kernels

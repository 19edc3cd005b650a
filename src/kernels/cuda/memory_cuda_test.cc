// Device memory: what is uploaded stays, and work beside is ordered where it says so.
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

// A long tensor, so that who does not wait comes too early: a piece for what was issued before it,
// whoever follows for the pieces. What is left unfinished may be any that came later.
TEST_F(MemoryCudaTest, PiecesBesideSeeWhatCameBeforeAndAreWaitedFor) {
  const int64_t size = int64_t{1} << 28;
  tensor::Arena arena("device", cuda_table().allocator);
  const TensorView x = arena.tensor("x", DType::F32, {size});
  const TensorView first = arena.tensor("first", DType::F32, {size});
  const TensorView second = arena.tensor("second", DType::F32, {size});
  const TensorView out = arena.tensor("out", DType::F32, {size});
  const auto copy = [](const Context& context, const TensorView& from, const TensorView& to) {
    round_values(context, {.x = from, .out = to});
  };
  const auto last_of = [&](TensorView view) {
    view.data = view.as<float>() + size - 1;
    view.shape = {1};
    return view;
  };
  for (float value = 1; value <= 8; ++value) {
    upload(cuda_, &value, last_of(x));
    copy(cuda_, x, first);
    run_beside(cuda_, [&](const Context& own) { copy(own, first, second); });
    run_beside(cuda_, [&](const Context& own) { copy(own, x, first); });
    wait_beside(cuda_, 1);
    copy(cuda_, second, out);
    float seen = 0;
    download(cuda_, last_of(out), &seen);
    EXPECT_EQ(seen, value);
    wait_beside(cuda_, 0);
  }
}

}  // namespace dsmoe::kernels

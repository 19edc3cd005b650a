// Device memory: what is uploaded stays, and work beside is ordered where it says so.
#include "kernels/cuda/negative_control.h"
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

class BesideCudaTest : public CudaTest {
 protected:
  // What whoever waits for a piece finds of it, in rounds that tell it 1, 2, .. All that must be
  // waited for comes late; what is left unfinished may be any piece that came later.
  std::vector<float> rounds(const KernelTable& table) {
    const Context context{.table = &table, .pool = nullptr, .stream = stream_};
    const TensorView told = device_tensor(DType::F32, {1});
    const TensorView kept = device_tensor(DType::F32, {1});
    const TensorView result = device_tensor(DType::F32, {1});
    const auto copy = [](const Context& own, const TensorView& from, const TensorView& to) {
      round_values(own, {.x = from, .out = to});
    };
    std::vector<float> found;
    for (float value = 1; value <= 4; ++value) {
      cuda::delay(context);
      upload(context, &value, told);
      const BesideWork work = run_beside(context, [&](const Context& own) {
        copy(own, told, kept);
        cuda::delay(own);
        copy(own, kept, result);
      });
      const BesideWork later = run_beside(context, [&](const Context& own) { cuda::delay(own); });
      wait_beside(context, work);
      download(context, result, &found.emplace_back());
      wait_beside(cuda_, later);
    }
    return found;
  }
};

TEST_F(BesideCudaTest, PiecesSeeWhatCameBeforeAndAreWaitedForAndControlsComeTooEarly) {
  const std::vector<float> right = {1, 2, 3, 4};
  EXPECT_EQ(rounds(cuda_table()), right);
  void* const queue = begin_beside(cuda_).stream;
  end_beside(cuda_);
  EXPECT_NE(rounds(cuda::table_that_begins_early(cuda_, queue)), right);
  EXPECT_NE(rounds(cuda::table_that_waits_too_little()), right);
}

}  // namespace dsmoe::kernels

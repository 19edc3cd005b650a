// Dense products and their bits: every variant, the portable kernel, any batch.
#include "kernels/cuda/negative_control.h"
#include "kernels/cuda/product/product.h"
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

struct Size {
  int64_t tokens;
  int64_t n;
  int64_t k;
};

class ProductsCudaTest : public CudaTest {
 protected:
  // [n, k] as it lies, or as the transpose of a row-major [k, n].
  TwinWeights weights_by(WeightLayout layout, DType dtype, const Size& size, double scale) {
    if (layout == WeightLayout::row_major) return weights(dtype, 1, size.n, size.k, scale);
    const TwinWeights stored = weights(dtype, 1, size.k, size.n, scale);
    return {transpose_of(stored.device), transpose_of(stored.host)};
  }
};

constexpr WeightLayout kBothLayouts[] = {WeightLayout::row_major, WeightLayout::column_major};

TEST_F(ProductsCudaTest, DenseAgreesWithTheReferenceAtOddSizes) {
  const Size sizes[] = {{1, 8, 8},       {1, 64, 64},   {3, 40, 24},    {7, 200, 136},
                        {8, 136, 1000},  {65, 72, 256}, {130, 264, 96}, {257, 128, 72},
                        {300, 520, 200}, {5, 7, 13},    {66, 33, 17},   {2, 1, 1}};
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Size& size : sizes) {
      for (const auto& [store, layout] :
           {std::pair{Store::assign, WeightLayout::row_major},
            std::pair{Store::accumulate, WeightLayout::row_major},
            std::pair{Store::assign, WeightLayout::column_major},
            std::pair{Store::accumulate, WeightLayout::column_major}}) {
        const double scale = 1 / std::sqrt(static_cast<double>(size.k));
        const Twin x = random(dtype, {size.tokens, size.k});
        const TwinWeights w = weights_by(layout, dtype, size, scale);
        const Twin bias = random(DType::F32, {size.n});
        Twin out = store == Store::assign ? output(DType::F32, {size.tokens, size.n})
                                          : random(DType::F32, {size.tokens, size.n});
        matmul_forward(cuda_, {.operand = x.device.dtype,
                               .x = x.device,
                               .weight = w.device,
                               .bias = bias.device,
                               .out = out.device,
                               .store = store});
        matmul_forward(ref_, {.operand = x.host.dtype,
                              .x = x.host,
                              .weight = w.host,
                              .bias = bias.host,
                              .out = out.host,
                              .store = store});
        const double bound = dtype == DType::BF16
                                 ? product_bound(size.k, scale)
                                 : (std::ceil(size.k / 256.0) + 256) * kUnit * 1.3 * size.k * scale;
        expect_elements(out, 4 * kUnit, bound + 8 * kUnit, "dense product");
      }
    }
  }
}

// The fact everything rests on: an ascending chain of k16 steps has the same bits in every variant
// and any batch.
TEST_F(ProductsCudaTest, VariantsAndBatchesAgreeBitForBit) {
  const Size size{.tokens = 4096, .n = 328, .k = 1416};
  const Twin x = random(DType::BF16, {size.tokens, size.k});
  const TwinWeights w = weights(DType::BF16, 1, size.n, size.k, 1 / std::sqrt(1416.0));
  const auto run = [&](int64_t begin, int64_t end, int variant) {
    const TensorView out = device_tensor(DType::F32, {end - begin, size.n});
    poison(out);
    cuda::force_product_variant(cuda_, variant);
    matmul_forward(cuda_, {.operand = x.device.dtype,
                           .x = x.device.rows(begin, end),
                           .weight = w.device,
                           .bias = {},
                           .out = out});
    return bytes_of(out);
  };
  const std::vector<unsigned char> whole = run(0, size.tokens, -1);
  const int64_t row = size.n * 4;
  const auto expect_rows = [&](const std::vector<unsigned char>& part, int64_t begin,
                               const char* what) {
    EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin * row, part.size()), 0)
        << what << " from row " << begin;
  };
  expect_rows(run(0, size.tokens, -1), 0, "run to run");
  for (int variant = -1; variant < cuda::num_product_variants(); ++variant) {
    for (const int64_t tokens : {1, 7, 64, 65, 300}) {
      expect_rows(run(1000, 1000 + tokens, variant), 1000, "batch");
    }
  }
  const TensorView portable = device_tensor(DType::F32, {300, size.n});
  cuda::Product product{.epilogue = cuda::Epilogue::dense, .num_groups = 1};
  product.group[0].weight = w.device;
  product.group[0].x = {x.device.rows(5, 305)};
  product.group[0].out = portable;
  cuda::launch_product_portable(cuda_, product);
  expect_rows(bytes_of(portable), 5, "portable");

  // A kernel that splits k in two must be told apart, or this test proves nothing.
  const TensorView split = device_tensor(DType::F32, {300, size.n});
  cuda::product_split_k(cuda_, x.device.rows(5, 305), w.device, split);
  const std::vector<unsigned char> other = bytes_of(split);
  EXPECT_NE(std::memcmp(other.data(), whole.data() + 5 * row, other.size()), 0)
      << "the negative control was not caught";
}

// What is added to may lie where the result goes or elsewhere.
TEST_F(ProductsCudaTest, AddedResultsAgreeBitForBit) {
  const Size size{.tokens = 600, .n = 328, .k = 136};
  std::vector<double> rows = normal(size.tokens * size.k, 1);
  std::vector<double> before = normal(size.tokens * size.n, 1);
  // Sums of exactly zero beside what must be flushed or lose its sign; and what cancels to that.
  constexpr double kLeast = 0x1p-126;
  const double corner[] = {1e-40, -1e-40, -0.0, 1.5 * kLeast, -kLeast, 3e38, INFINITY};
  for (int64_t i = 0; i < 300 * size.k; ++i) rows[i] *= i < 200 * size.k ? 0 : 1e-37;
  for (int64_t i = 0; i < 300 * size.n; ++i) before[i] = corner[i % 7];
  const Twin x = from(DType::BF16, {size.tokens, size.k}, rows);
  const TwinWeights w = weights(DType::BF16, 1, size.n, size.k, 1);
  const Twin bias = random(DType::F32, {size.n});
  for (const TensorView& added : {TensorView{}, bias.device}) {
    cuda::Product product{.epilogue = cuda::Epilogue::dense, .accumulate = true, .num_groups = 1};
    product.group[0].weight = w.device;
    product.group[0].x = {x.device};
    product.group[0].bias = added;
    product.group[0].out = from(DType::F32, {size.tokens, size.n}, before).device;
    cuda::launch_product_portable(cuda_, product);
    const std::vector<unsigned char> expected = bytes_of(product.group[0].out);
    for (int variant = -1; variant < cuda::num_product_variants(); ++variant) {
      cuda::force_product_variant(cuda_, variant);
      const TensorView start = from(DType::F32, {size.tokens, size.n}, before).device;
      const TensorView elsewhere = output(DType::F32, {size.tokens, size.n}).device;
      for (const TensorView& out : {elsewhere, start}) {
        matmul_forward(cuda_, {.operand = x.device.dtype,
                               .x = x.device,
                               .weight = w.device,
                               .bias = added,
                               .out = out,
                               .store = Store::accumulate,
                               .base = start});
        EXPECT_EQ(bytes_of(out), expected) << variant;
      }
    }
  }
}

// A weight read as the transpose of what lies in memory gives the bits of the transposed copy.
TEST_F(ProductsCudaTest, TransposesAgreeBitForBit) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Size& size : {Size{700, 328, 1416}, Size{700, 320, 1000}, Size{90, 704, 264},
                             Size{3, 64, 72}, Size{40, 21, 30}, Size{300, 136, 136}}) {
      const Twin x = random(dtype, {size.tokens, size.k});
      const std::vector<double> stored = normal(size.n * size.k, 1);
      std::vector<double> copied;
      for (int64_t n = 0; n < size.n; ++n) {
        for (int64_t k = 0; k < size.k; ++k) copied.push_back(stored[k * size.n + n]);
      }
      const auto stack = [&](const std::vector<double>& values, int64_t n, int64_t k) {
        return WeightStack{.data = from(dtype, {n, k}, values).device.data,
                           .dtype = dtype,
                           .device = Device::cuda,
                           .count = 1,
                           .n = n,
                           .k = k};
      };
      const WeightStack straight = stack(stored, size.k, size.n);
      const auto run = [&](const WeightStack& weight, bool rounded, int variant) {
        cuda::force_product_variant(cuda_, variant);
        const TensorView out = output(DType::F32, {size.tokens, size.n}).device;
        const TensorView bits =
            rounded ? output(DType::BF16, {size.tokens, size.n}).device : TensorView{};
        matmul_forward(cuda_, {.operand = x.device.dtype,
                               .x = x.device,
                               .weight = weight,
                               .out = out,
                               .rounded = bits});
        return bytes_of(rounded ? bits : out);
      };
      for (const bool rounded : {false, true}) {
        if (rounded && dtype != DType::BF16) continue;
        const auto expected = run(stack(copied, size.n, size.k), rounded, -1);
        for (int variant = cuda::kPortableVariant; variant < cuda::num_product_variants();
             ++variant) {
          EXPECT_EQ(run(transpose_of(straight), rounded, variant), expected)
              << size.n << " x " << size.k << ", variant " << variant;
        }
        // The comparison can tell a matrix from its transpose.
        if (size.n == size.k) {
          EXPECT_NE(run(straight, rounded, -1), expected);
        }
      }
    }
  }
}

// What the router's input gradient takes: fp32, no bias, four outputs at a time.
TEST_F(ProductsCudaTest, PlainFp32AgreesWithTheReference) {
  for (const Size& size : {Size{300, 136, 64}, Size{65, 260, 600}, Size{129, 42, 30}}) {
    for (const WeightLayout layout : kBothLayouts) {
      const Store store = size.n == 260 ? Store::assign : Store::accumulate;
      const double scale = 1 / std::sqrt(static_cast<double>(size.k));
      const Twin x = random(DType::F32, {size.tokens, size.k});
      const TwinWeights w = weights_by(layout, DType::F32, size, scale);
      Twin out = store == Store::assign ? output(DType::F32, {size.tokens, size.n})
                                        : random(DType::F32, {size.tokens, size.n});
      matmul_forward(cuda_, {.operand = x.device.dtype,
                             .x = x.device,
                             .weight = w.device,
                             .out = out.device,
                             .store = store});
      matmul_forward(ref_, {.operand = x.host.dtype,
                            .x = x.host,
                            .weight = w.host,
                            .out = out.host,
                            .store = store});
      expect_elements(out, 4 * kUnit,
                      (std::ceil(size.k / 256.0) + 256) * kUnit * 1.3 * size.k * scale + 8 * kUnit,
                      "fp32 product");
    }
  }
}

// A rounded result is the fp32 one, rounded.
TEST_F(ProductsCudaTest, RoundedResultsAreTheRoundedSums) {
  for (const Size& size : {Size{3, 40, 24}, Size{300, 328, 136}, Size{66, 33, 17}}) {
    const Twin x = random(DType::BF16, {size.tokens, size.k});
    const TwinWeights w = weights(DType::BF16, 1, size.n, size.k, 1);
    const TensorView out = device_tensor(DType::F32, {size.tokens, size.n});
    const TensorView expected = device_tensor(DType::BF16, {size.tokens, size.n});
    const TensorView rounded = device_tensor(DType::BF16, {size.tokens, size.n});
    poison(rounded);
    matmul_forward(cuda_,
                   {.operand = x.device.dtype, .x = x.device, .weight = w.device, .out = out});
    round_values(cuda_, {.x = out, .out = expected});
    matmul_forward(cuda_, {.operand = x.device.dtype,
                           .x = x.device,
                           .weight = w.device,
                           .out = out,
                           .rounded = rounded});
    EXPECT_EQ(bytes_of(rounded), bytes_of(expected)) << size.n;
  }
}

}  // namespace
}  // namespace dsmoe::kernels

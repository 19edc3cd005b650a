// For tests of layers on a GPU: a stream, an arena, random tensors there.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/memory.h"
#include "moe/layer.h"
#include "tensor/arena.h"

namespace dsmoe::testing {

using kernels::DType;
using kernels::Shape;
using kernels::TensorView;
using kernels::WeightStack;

// Test is ::testing::Test or ::testing::TestWithParam<...>.
template <class Test>
class OnCuda : public Test {
 protected:
  void SetUp() override {
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    context_ = {.table = &kernels::cuda_table(),
                .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
    arena_ = std::make_unique<tensor::Arena>("test", context_.table->allocator);
  }
  void TearDown() override {
    arena_.reset();
    if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
  }

  TensorView random(DType dtype, const Shape& shape, double scale) {
    const TensorView view = arena_->tensor("test", dtype, shape);
    std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
    rng_.stream++;
    rng_.fill_normal(0, values);
    std::vector<tensor::Bf16> rounded;
    for (float& value : values) {
      value *= static_cast<float>(scale);
      rounded.push_back(tensor::to_bf16(value));
    }
    kernels::upload(
        context_, dtype == DType::BF16 ? static_cast<void*>(rounded.data()) : values.data(), view);
    return view;
  }
  WeightStack stack(int64_t count, int64_t n, int64_t k, DType dtype = DType::BF16) {
    const TensorView view = random(dtype, {count * n, k}, 1 / std::sqrt(static_cast<double>(k)));
    return {.data = view.data,
            .dtype = dtype,
            .layout = kernels::WeightLayout::row_major,
            .device = tensor::Device::cuda,
            .count = count,
            .n = n,
            .k = k};
  }
  moe::ExpertWeights experts(int64_t count, int64_t width, int64_t hidden) {
    return {.gate = stack(count, width, hidden),
            .up = stack(count, width, hidden),
            .down = stack(count, hidden, width)};
  }
  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView view =
        arena_->tensor("test", DType::I32, {static_cast<int64_t>(values.size())});
    kernels::upload(context_, values.data(), view);
    return view;
  }

  kernels::Context context_;
  std::unique_ptr<tensor::Arena> arena_;
  Rng rng_{.seed = 7, .purpose = RngPurpose::test};
};

}  // namespace dsmoe::testing

// What the CUDA tests share: tensors that live twice (device, and the same values in double for the
// reference), and bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_table.h"
#include "kernels/elements.h"
#include "kernels/ops.h"

namespace dsmoe::kernels {

constexpr double kRound =
    1.0 / 256;  // half an ulp of bf16 (8 significant bits), relative to the smallest mantissa
constexpr double kUnit = 1.0 / (1 << 24);      // unit roundoff of fp32
constexpr double kStepUnit = 1.0 / (1 << 22);  // one tensor-core step may truncate instead of round

// Values on the device in their own type, and exactly the same values on the host as F64 (I32 stays
// I32).
struct Twin {
  TensorView device;
  TensorView host;
};
struct TwinWeights {
  WeightStack device;
  WeightStack host;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_declined(); !why.empty()) GTEST_SKIP() << why;
    stream_ = make_cuda_stream(KernelsThatWait::allowed);
    cuda_ = {.table = &cuda_table(), .pool = nullptr, .stream = stream_};
    ref_ = {.table = &ref_table(), .pool = nullptr, .stream = nullptr};
    device_arena_ = std::make_unique<tensor::Arena>("device", cuda_table().allocator);
    host_arena_ = std::make_unique<tensor::Arena>("host");
  }
  void TearDown() override {
    if (stream_ != nullptr) release_cuda_stream(stream_);
  }

  TensorView device_tensor(DType dtype, const Shape& shape) {
    return device_arena_->tensor("t", dtype, shape);
  }
  TensorView host_tensor(DType dtype, const Shape& shape) {
    return host_arena_->tensor("t", dtype, shape);
  }

  // Every byte 0xff: NaN in every floating type, -1 in I32.
  void poison(const TensorView& view) {
    const std::vector<unsigned char> bytes(view.num_bytes(), 0xff);
    upload(cuda_, bytes.data(), view);
  }
  // An output: poisoned on the device, F64 on the host.
  Twin output(DType dtype, const Shape& shape) {
    Twin twin{device_tensor(dtype, shape),
              host_tensor(dtype == DType::I32 ? DType::I32 : DType::F64, shape)};
    poison(twin.device);
    return twin;
  }
  Twin from(DType dtype, const Shape& shape, const std::vector<double>& values) {
    Twin twin{device_tensor(dtype, shape), host_tensor(DType::F64, shape)};
    std::vector<unsigned char> bytes(twin.device.num_bytes());
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      write_element(bytes.data(), dtype, i, values[i]);
      twin.host.as<double>()[i] = read_element(bytes.data(), dtype, i);
    }
    upload(cuda_, bytes.data(), twin.device);
    return twin;
  }
  std::vector<double> normal(int64_t count, double scale) {
    std::normal_distribution<double> distribution(0, scale);
    std::vector<double> values(count);
    for (double& v : values) v = distribution(random_);
    return values;
  }
  Twin random(DType dtype, const Shape& shape, double scale = 1) {
    return from(dtype, shape, normal(shape.num_elements(), scale));
  }
  Twin integers(const std::vector<int32_t>& values, const Shape& shape) {
    Twin twin{device_tensor(DType::I32, shape), host_tensor(DType::I32, shape)};
    std::memcpy(twin.host.data, values.data(), values.size() * 4);
    upload(cuda_, values.data(), twin.device);
    return twin;
  }
  TwinWeights weights(DType dtype, int64_t count, int64_t n, int64_t k, double scale) {
    const Twin twin = random(dtype, {count * n, k}, scale);
    const auto stack = [&](const TensorView& view) {
      return WeightStack{.data = view.data,
                         .dtype = view.dtype,
                         .layout = WeightLayout::row_major,
                         .device = view.device,
                         .count = count,
                         .n = n,
                         .k = k};
    };
    return {stack(twin.device), stack(twin.host)};
  }

  std::vector<unsigned char> bytes_of(const TensorView& device) {
    std::vector<unsigned char> bytes(device.num_bytes());
    download(cuda_, device, bytes.data());
    return bytes;
  }
  std::vector<double> values_of(const TensorView& device) {
    const std::vector<unsigned char> bytes = bytes_of(device);
    std::vector<double> values(device.num_elements());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = read_element(bytes.data(), device.dtype, i);
    return values;
  }
  std::vector<int32_t> integers_of(const TensorView& device) {
    std::vector<int32_t> values(device.num_elements());
    download(cuda_, device, values.data());
    return values;
  }
  // The reference continues from what the device computed.
  void copy_to_host(const Twin& twin) {
    const std::vector<double> values = values_of(twin.device);
    std::memcpy(twin.host.data, values.data(), values.size() * 8);
  }

  // |device - reference| <= bound * |reference| + absolute, per element.
  void expect_elements(const Twin& twin, double relative, double absolute, const char* what) {
    const std::vector<double> values = values_of(twin.device);
    const double* reference = twin.host.as<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(values[i] - reference[i]);
      ASSERT_TRUE(error <= relative * std::abs(reference[i]) + absolute)
          << what << ": element " << i << " is " << values[i] << ", reference " << reference[i];
    }
  }
  // norm(device - reference) <= bound * norm(reference).
  void expect_norm(const Twin& twin, double bound, const char* what) {
    const std::vector<double> values = values_of(twin.device);
    const double* reference = twin.host.as<double>();
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += (values[i] - reference[i]) * (values[i] - reference[i]);
      norm += reference[i] * reference[i];
    }
    EXPECT_TRUE(std::sqrt(error) <= bound * std::sqrt(norm))
        << what << ": relative error " << std::sqrt(error / norm) << ", bound " << bound;
  }

  Context cuda_;
  Context ref_;
  void* stream_ = nullptr;
  std::unique_ptr<tensor::Arena> device_arena_;
  std::unique_ptr<tensor::Arena> host_arena_;
  std::mt19937_64 random_{1};
};

// Worst case of a bf16 product of length k on sum |a b|, for operands of standard deviation 1 and
// `scale`: sum |a b| is near 0.64 k scale; twice that is never reached by a row here.
inline double product_bound(int64_t k, double scale) {
  return (std::ceil(k / 16.0) + 17) * kStepUnit * 1.3 * static_cast<double>(k) * scale;
}

}  // namespace dsmoe::kernels

// Weight gradients and the experts' backward pass against the reference, and their bits.
#include <numeric>

#include "kernels/cuda/product/product.h"
#include "kernels/cuda/product/weight_gradient.h"
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

class BackwardProductsCudaTest : public CudaTest {
 protected:
  enum class Gather : uint8_t { none, x, dy };
  struct Case {
    int64_t count, sequences, n, k;
    int max_rows;  // of a (matrix, sequence)
    Gather gather = Gather::none;
  };
  struct Gradient {
    Twin dy, x, source, offsets, d_weight;
    Gather gather;
    int64_t rows;

    WeightGradient args(TensorView Twin::*side) const {
      WeightGradient args{.dy = {dy.*side},
                          .x = {x.*side},
                          .sequence_offsets = offsets.*side,
                          .d_weight = d_weight.*side};
      if (gather == Gather::x) args.x.index = source.*side;
      if (gather == Gather::dy) args.dy.index = source.*side;
      return args;
    }
  };
  // Row counts at random, some zero; the last matrix ends before the last row of its tensors.
  Gradient make(const Case& c, DType dy_type, DType x_type) {
    std::uniform_int_distribution<int> pick(0, c.max_rows);
    std::vector<int32_t> offsets;
    int32_t row = 0;
    for (int64_t m = 0; m < c.count; ++m) {
      offsets.push_back(row);
      for (int64_t s = 0; s < c.sequences; ++s) {
        const int rows = pick(random_);
        row += m % 5 == 1 || rows % 7 == 3 ? 0 : rows;
        offsets.push_back(row);
      }
    }
    const int64_t rows = row + 5;
    const int64_t tokens = rows / 2 + 3;
    std::vector<int32_t> source(rows);
    for (int32_t& token : source) token = static_cast<int32_t>(random_() % tokens);
    return {.dy = random(dy_type, {c.gather == Gather::dy ? tokens : rows, c.n}),
            .x = random(x_type, {c.gather == Gather::x ? tokens : rows, c.k}),
            .source = integers(source, {rows}),
            .offsets = integers(offsets, {c.count, c.sequences + 1}),
            .d_weight = random(DType::F32, {c.count, c.n, c.k}),
            .gather = c.gather,
            .rows = row};
  }
  std::vector<unsigned char> gradient_bits(const Gradient& g, const std::vector<double>& start,
                                           bool portable) {
    const Twin target = from(DType::F32, g.d_weight.device.shape, start);
    WeightGradient args = g.args(&Twin::device);
    args.d_weight = target.device;
    if (portable) {
      cuda::weight_gradient_portable(cuda_, args);
    } else {
      weight_gradient(cuda_, args);
    }
    return bytes_of(target.device);
  }
};

TEST_F(BackwardProductsCudaTest, WeightGradientAgreesWithTheReference) {
  const Case cases[] = {{1, 1, 64, 64, 40},
                        {1, 3, 128, 256, 200},
                        {1, 2, 200, 136, 70},
                        {4, 3, 136, 128, 50, Gather::x},
                        {3, 2, 264, 72, 90, Gather::x},
                        {5, 4, 128, 200, 33, Gather::dy},
                        {6, 2, 72, 264, 130, Gather::dy},
                        {3, 4, 352, 264, 90},
                        {1, 5, 264, 704, 150},
                        {3, 3, 21, 30, 40, Gather::x},
                        {2, 2, 13, 9, 20}};
  for (const auto& [dy_type, x_type] :
       {std::pair{DType::BF16, DType::BF16}, std::pair{DType::F32, DType::F32},
        std::pair{DType::F32, DType::BF16}}) {
    for (const Case& c : cases) {
      const Gradient g = make(c, dy_type, x_type);
      weight_gradient(cuda_, g.args(&Twin::device));
      weight_gradient(ref_, g.args(&Twin::host));
      const double rows = static_cast<double>(c.max_rows * c.sequences);
      expect_elements(g.d_weight, 0, 8 * (rows / 16 + 300) * kStepUnit * std::sqrt(rows),
                      "weight gradient");
    }
  }
}

TEST_F(BackwardProductsCudaTest, RouterGradientInSegments) {
  const int64_t tokens = 1500;
  const Twin dy = random(DType::F32, {tokens, 20});
  const Twin x = random(DType::BF16, {tokens, 136});
  const Twin offsets = integers({0, 700, 705, 1500}, {1, 4});
  const Twin d_weight = random(DType::F32, {1, 20, 136});
  const auto args = [&](TensorView Twin::*side) {
    return WeightGradient{.dy = {dy.*side},
                          .x = {x.*side},
                          .sequence_offsets = offsets.*side,
                          .d_weight = d_weight.*side};
  };
  weight_gradient(cuda_, args(&Twin::device));
  weight_gradient(ref_, args(&Twin::host));
  expect_elements(d_weight, 0, 300 * kUnit * std::sqrt(1500.0) * 4, "router's weight gradient");
}

// The copy engine's kernel, the portable one, and any cut between sequences give the same bits; a
// cut inside a sequence does not.
TEST_F(BackwardProductsCudaTest, WeightGradientBitsDoNotDependOnMicroBatches) {
  for (const Case& c :
       {Case{4, 6, 136, 128, 60, Gather::x}, Case{3, 6, 72, 264, 90, Gather::dy},
        Case{1, 6, 136, 192, 130}, Case{3, 6, 352, 320, 70}, Case{40, 6, 136, 520, 60, Gather::x},
        Case{2, 6, 520, 1000, 90}, Case{300, 6, 72, 136, 20}}) {
    const Gradient g = make(c, DType::BF16, DType::BF16);
    const std::vector<double> start = values_of(g.d_weight.device);
    const auto whole = gradient_bits(g, start, false);
    EXPECT_EQ(whole, gradient_bits(g, start, false)) << "run to run";
    EXPECT_EQ(whole, gradient_bits(g, start, true)) << "portable";
    const auto cut = [&](int64_t at, int32_t shift) {
      const Twin target = from(DType::F32, g.d_weight.device.shape, start);
      const int32_t* all = g.offsets.host.as<int32_t>();
      for (const bool second : {false, true}) {
        std::vector<int32_t> part;
        for (int64_t m = 0; m < c.count; ++m) {
          for (int64_t s = second ? at : 0; s <= (second ? c.sequences : at); ++s) {
            const int32_t moved = s == at ? shift : 0;
            part.push_back(all[m * (c.sequences + 1) + s] + moved);
          }
        }
        WeightGradient args = g.args(&Twin::device);
        const int64_t sequences = second ? c.sequences - at : at;
        args.sequence_offsets = integers(part, {c.count, sequences + 1}).device;
        args.d_weight = target.device;
        weight_gradient(cuda_, args);
      }
      return bytes_of(target.device);
    };
    EXPECT_EQ(whole, cut(2, 0)) << "cut between sequences";
    const int32_t* first = g.offsets.host.as<int32_t>();
    if (first[3] - first[2] > 20) {
      EXPECT_NE(whole, cut(2, 3)) << "cut inside a sequence";
    }
  }
}

struct Layer {
  int64_t tokens, experts, hidden, width, shared_width;
  int top_k;
};

class ExpertsBackwardCudaTest : public BackwardProductsCudaTest {
 protected:
  struct Family {
    TwinWeights gate, up, down;
    Twin offsets, token_of_row, gate_of_row, activation, gate_product, up_product, scaled, d_gate,
        d_gate_product, d_up_product, d_x;
    bool routed = false;
    int64_t used = 0;

    ExpertFamilyBackward args(const Twin& d_out, TensorView Twin::*side,
                              WeightStack TwinWeights::*weight) const {
      ExpertFamilyBackward args{.gate_transposed = transpose_of(gate.*weight),
                                .up_transposed = transpose_of(up.*weight),
                                .down_transposed = transpose_of(down.*weight),
                                .offsets = offsets.*side,
                                .d_out = {d_out.*side},
                                .activation = activation.*side,
                                .gate_product = gate_product.*side,
                                .up_product = up_product.*side,
                                .d_gate_product = d_gate_product.*side,
                                .d_up_product = d_up_product.*side,
                                .d_x = d_x.*side};
      if (routed) {
        args.d_out.index = token_of_row.*side;
        args.gate_of_row = gate_of_row.*side;
        args.scaled_activation = scaled.*side;
        args.d_gate_of_row = d_gate.*side;
      }
      return args;
    }
    std::vector<const Twin*> outputs() const {
      if (routed) return {&scaled, &d_gate, &d_gate_product, &d_up_product, &d_x};
      return {&d_gate_product, &d_up_product, &d_x};
    }
  };

  Family family(const Layer& layer, DType dtype, bool routed) {
    const int64_t count = routed ? layer.experts : 1;
    const int64_t width = routed ? layer.width : layer.shared_width;
    const int64_t rows = routed ? layer.tokens * layer.top_k : layer.tokens;
    std::vector<int32_t> offsets{0};
    for (int64_t e = 1; e < count; ++e)
      offsets.push_back(e == 2 ? offsets.back() : static_cast<int32_t>(random_() % (rows - 1)));
    std::sort(offsets.begin(), offsets.end());
    offsets.push_back(static_cast<int32_t>(routed ? rows - 1 : rows));
    std::vector<int32_t> tokens(rows);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % layer.tokens);
    const double narrow = 1 / std::sqrt(static_cast<double>(width));
    const double wide = 1 / std::sqrt(static_cast<double>(layer.hidden));
    return {.gate = weights(dtype, count, width, layer.hidden, narrow),
            .up = weights(dtype, count, width, layer.hidden, narrow),
            .down = weights(dtype, count, layer.hidden, width, wide),
            .offsets = integers(offsets, {count + 1}),
            .token_of_row = integers(tokens, {rows}),
            .gate_of_row = random(DType::F32, {rows}),
            .activation = random(dtype, {rows, width}),
            .gate_product = random(dtype, {rows, width}),
            .up_product = random(dtype, {rows, width}),
            .scaled = output(dtype, {rows, width}),
            .d_gate = output(DType::F32, {rows}),
            .d_gate_product = output(dtype, {rows, width}),
            .d_up_product = output(dtype, {rows, width}),
            .d_x = output(dtype, {rows, layer.hidden}),
            .routed = routed,
            .used = offsets.back()};
  }
  void run_device(const Twin& d_out, const std::vector<Family>& families, bool laid_out = false) {
    std::vector<ExpertFamilyBackward> args;
    for (const Family& f : families) {
      for (const Twin* twin : f.outputs()) poison(twin->device);
      args.push_back(f.args(d_out, &Twin::device, &TwinWeights::device));
      if (!laid_out || !f.routed) continue;
      const TensorView rows = device_tensor(DType::BF16, f.d_x.device.shape);
      EXPECT_TRUE(
          dispatch_rows(
              cuda_,
              {.rows = args.back().d_out, .offsets = f.offsets.device, .out = rows, .readers = 2})
              .ran());
      args.back().d_out = {rows};
    }
    experts_down_backward(cuda_, {.operand = args[0].d_x.dtype, .families = args});
    experts_up_backward(cuda_, {.operand = args[0].d_x.dtype, .families = args});
    for (const Family& f : families) {
      for (const Twin* twin : f.outputs()) {
        const TensorView tail = twin->device.rows(f.used, twin->device.dim(0));
        if (tail.num_elements() > 0) zero(cuda_, tail.data, tail.num_bytes());
      }
    }
  }
  std::vector<unsigned char> all_bits(const std::vector<Family>& families) {
    std::vector<unsigned char> all;
    for (const Family& f : families) {
      for (const Twin* twin : f.outputs()) {
        const auto bytes = bytes_of(twin->device);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
    return all;
  }
};

TEST_F(ExpertsBackwardCudaTest, AgreesWithTheReference) {
  const Layer layers[] = {{5, 4, 72, 40, 24, 2},     {40, 6, 128, 200, 136, 4},
                          {300, 4, 64, 72, 48, 2},   {9, 5, 30, 21, 13, 3},
                          {700, 3, 136, 264, 96, 2}, {33, 64, 256, 128, 256, 6}};
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Layer& layer : layers) {
      const Twin d_out = random(dtype, {layer.tokens, layer.hidden});
      const std::vector<Family> families = {family(layer, dtype, true),
                                            family(layer, dtype, false)};
      run_device(d_out, families);
      const double round = dtype == DType::BF16 ? kRound : 16 * kUnit;
      for (const Family& f : families) {
        // The reference goes step by step from what the device rounded.
        const ExpertFamilyBackward args = f.args(d_out, &Twin::host, &TwinWeights::host);
        experts_down_backward(ref_, {.operand = args.d_x.dtype, .families = {&args, 1}});
        const double chain = dtype == DType::BF16
                                 ? product_bound(layer.hidden, 1 / std::sqrt(double(layer.hidden)))
                                 : 600 * kUnit * std::sqrt(double(layer.hidden));
        const double width = static_cast<double>(f.activation.device.dim(1));
        if (f.routed) {
          expect_elements(f.scaled, round, 0, "scaled activation");
          expect_elements(f.d_gate, 100 * kUnit, 3 * chain * width, "gradient of the gate");
        }
        // |gate|, |u|, |silu| stay below 6 here; exp and reciprocal are within 4 ulp.
        expect_elements(f.d_up_product, 1.01 * round, 36 * chain, "gradient of up");
        expect_elements(f.d_gate_product, 1.01 * round, 36 * chain + 100 * kUnit,
                        "gradient of gate");
        copy_to_host(f.d_gate_product);
        copy_to_host(f.d_up_product);
        experts_up_backward(ref_, {.operand = args.d_x.dtype, .families = {&args, 1}});
        const double long_chain =
            dtype == DType::BF16
                ? 30 * product_bound(2 * static_cast<int64_t>(width), 1 / std::sqrt(width))
                : 6000 * kUnit * std::sqrt(width);
        expect_elements(f.d_x, round, long_chain, "gradient of the input");
      }
    }
  }
}

TEST_F(ExpertsBackwardCudaTest, VariantsAndBatchesAgreeBitForBit) {
  // The second has several tiles for each multiprocessor.
  const Layer layers[] = {
      {700, 4, 136, 264, 96, 2}, {9000, 4, 136, 264, 96, 2}, {999, 3, 264, 328, 712, 2}};
  for (const Layer& layer : layers) {
    const Twin d_out = random(DType::BF16, {layer.tokens, layer.hidden});
    const std::vector<Family> both = {family(layer, DType::BF16, true),
                                      family(layer, DType::BF16, false)};
    run_device(d_out, both);
    const auto expected = all_bits(both);
    for (const int variant : {cuda::kPortableVariant, 2, 3, 4, 5}) {
      cuda::force_product_variant(cuda_, variant);
      run_device(d_out, both);
      EXPECT_EQ(all_bits(both), expected) << "variant " << variant;
      run_device(d_out, both, true);
      EXPECT_EQ(all_bits(both), expected) << "laid out, variant " << variant;
    }
    cuda::force_product_variant(cuda_, cuda::kBySize);
    run_device(d_out, {both[1]});
    run_device(d_out, {both[0]});
    EXPECT_EQ(all_bits(both), expected) << "one family at a time";
  }
}

}  // namespace
}  // namespace dsmoe::kernels

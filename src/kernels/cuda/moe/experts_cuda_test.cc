// Experts and combine through a real plan, against the reference, and their bits.
#include <algorithm>
#include <span>

#include "kernels/cuda/product/product.h"
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

struct Layer {
  int64_t tokens, experts, hidden, width, shared_width;
  int top_k;
};

class ExpertsCudaTest : public CudaTest {
 protected:
  struct Weights {
    TwinWeights gate, up, down;
  };
  Weights expert_weights(DType dtype, int64_t count, int64_t hidden, int64_t width) {
    return {weights(dtype, count, width, hidden, 1 / std::sqrt(static_cast<double>(hidden))),
            weights(dtype, count, width, hidden, 1 / std::sqrt(static_cast<double>(hidden))),
            weights(dtype, count, hidden, width, 1 / std::sqrt(static_cast<double>(width)))};
  }
  struct Plan {
    Twin index, gate, starts, offsets, sequence_offsets, token_of_row, row_of_slot;
  };
  // Token t chooses top_k of the experts at random; expert 1 gets nothing, to have an empty one.
  Plan make_plan(const Layer& layer, const std::vector<int32_t>& index) {
    Plan plan;
    plan.index = integers(index, {layer.tokens, layer.top_k});
    plan.gate = random(DType::F32, {layer.tokens, layer.top_k});
    plan.starts = integers({0, static_cast<int32_t>(layer.tokens)}, {2});
    plan.offsets = output(DType::I32, {layer.experts + 1});
    plan.sequence_offsets = output(DType::I32, {layer.experts, 2});
    plan.token_of_row = output(DType::I32, {layer.tokens * layer.top_k});
    plan.row_of_slot = output(DType::I32, {layer.tokens, layer.top_k});
    plan_build(cuda_, {.index = plan.index.device,
                       .sequence_starts = plan.starts.device,
                       .plan = {plan.offsets.device, plan.sequence_offsets.device,
                                plan.token_of_row.device, plan.row_of_slot.device}});
    plan_build(ref_, {.index = plan.index.host,
                      .sequence_starts = plan.starts.host,
                      .plan = {plan.offsets.host, plan.sequence_offsets.host,
                               plan.token_of_row.host, plan.row_of_slot.host}});
    return plan;
  }
  std::vector<int32_t> choices(const Layer& layer) {
    std::vector<int32_t> index;
    for (int64_t t = 0; t < layer.tokens; ++t) {
      std::vector<int32_t> all;
      for (int32_t e = 0; e < layer.experts; ++e) {
        if (e != 1) all.push_back(e);
      }
      std::shuffle(all.begin(), all.end(), random_);
      for (int k = 0; k < layer.top_k; ++k) index.push_back(t % 7 == 6 && k > 0 ? -1 : all[k]);
    }
    return index;
  }
  struct Run {
    Twin routed_activation, routed_out, shared_activation, shared_out, offsets_shared, gate_product,
        up_product;
  };
  Run outputs(const Layer& layer, DType dtype) {
    const int64_t rows = layer.tokens * layer.top_k;
    return {output(dtype, {rows, layer.width}),
            output(dtype, {rows, layer.hidden}),
            output(dtype, {layer.tokens, layer.shared_width}),
            output(dtype, {layer.tokens, layer.hidden}),
            integers({0, static_cast<int32_t>(layer.tokens)}, {2}),
            output(dtype, {rows, layer.width}),
            output(dtype, {rows, layer.width})};
  }
  static std::vector<ExpertFamily> families(const Weights& routed, const Weights& shared,
                                            const Plan& plan, const Run& run, const TensorView& x,
                                            TensorView Twin::*side,
                                            WeightStack TwinWeights::*weight) {
    ExpertFamily a;
    a.gate = routed.gate.*weight, a.up = routed.up.*weight, a.down = routed.down.*weight;
    a.offsets = plan.offsets.*side, a.x = {x, plan.token_of_row.*side};
    a.activation = run.routed_activation.*side, a.out = run.routed_out.*side;
    a.gate_product = run.gate_product.*side, a.up_product = run.up_product.*side;
    ExpertFamily b;
    b.gate = shared.gate.*weight, b.up = shared.up.*weight, b.down = shared.down.*weight;
    b.offsets = run.offsets_shared.*side, b.x = {x};
    b.activation = run.shared_activation.*side, b.out = run.shared_out.*side;
    return {a, b};
  }
  // Rows past the plan's last are not written; leave them out of comparisons by making both sides
  // zero.
  void clear_unused(const Twin& twin, int64_t used) {
    const int64_t rows = twin.device.dim(0);
    if (used == rows) return;
    const TensorView tail = twin.device.rows(used, rows);
    zero(cuda_, tail.data, tail.num_bytes());
  }
};

TEST_F(ExpertsCudaTest, LayerAgreesWithTheReference) {
  const Layer layers[] = {{1, 8, 64, 32, 64, 3},     {5, 8, 72, 40, 24, 2},
                          {40, 6, 128, 200, 136, 4}, {200, 4, 64, 72, 48, 2},
                          {9, 5, 30, 21, 13, 3},     {700, 3, 64, 32, 96, 2},
                          {33, 64, 256, 128, 256, 6}};
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Layer& layer : layers) {
      const Twin x = random(dtype, {layer.tokens, layer.hidden});
      const Weights routed = expert_weights(dtype, layer.experts, layer.hidden, layer.width);
      const Weights shared = expert_weights(dtype, 1, layer.hidden, layer.shared_width);
      const Plan plan = make_plan(layer, choices(layer));
      const Run run = outputs(layer, dtype);
      const auto device =
          families(routed, shared, plan, run, x.device, &Twin::device, &TwinWeights::device);
      const auto host =
          families(routed, shared, plan, run, x.host, &Twin::host, &TwinWeights::host);
      const int64_t used = plan.offsets.host.as<int32_t>()[layer.experts];
      const double round = dtype == DType::BF16 ? kRound : 0;
      const double chain = dtype == DType::BF16
                               ? product_bound(layer.hidden, 1 / std::sqrt(double(layer.hidden)))
                               : 300 * kUnit * 1.3 * std::sqrt(double(layer.hidden));
      const double long_chain =
          dtype == DType::BF16
              ? product_bound(layer.shared_width + layer.width, 1 / std::sqrt(double(layer.width)))
              : 300 * kUnit * 1.3 * std::sqrt(double(layer.shared_width + layer.width));

      experts_up_forward(cuda_, {.operand = device[0].activation.dtype, .families = device});
      experts_up_forward(ref_, {.operand = host[0].activation.dtype, .families = host});
      for (const Twin* twin : {&run.routed_activation, &run.gate_product, &run.up_product})
        clear_unused(*twin, used);
      expect_elements(run.gate_product, round, 2 * chain, "gate product");
      expect_elements(run.up_product, round, 2 * chain, "up product");
      // silu is 1.1-Lipschitz; both factors are below 6 here.
      expect_elements(run.routed_activation, round + 16 * kUnit, 14 * chain + 1e-6,
                      "routed activation");
      expect_elements(run.shared_activation, round + 16 * kUnit, 14 * chain + 1e-6,
                      "shared activation");

      copy_to_host(run.routed_activation);
      copy_to_host(run.shared_activation);
      experts_down_forward(cuda_, {.operand = device[0].activation.dtype, .families = device});
      experts_down_forward(ref_, {.operand = host[0].activation.dtype, .families = host});
      clear_unused(run.routed_out, used);
      expect_elements(run.routed_out, round, 4 * long_chain, "routed output");
      expect_elements(run.shared_out, round, 4 * long_chain, "shared output");

      copy_to_host(run.routed_out);
      copy_to_host(run.shared_out);
      for (const Store store : {Store::accumulate, Store::assign}) {
        const Twin residual = random(DType::F32, {layer.tokens, layer.hidden});
        const auto combine = [&](const Context& context, TensorView Twin::*side) {
          CombineForward args;
          args.index = plan.index.*side, args.gate = plan.gate.*side,
          args.row_of_slot = plan.row_of_slot.*side;
          args.routed = run.routed_out.*side, args.shared = run.shared_out.*side;
          args.residual = residual.*side, args.store = store;
          combine_forward(context, args);
        };
        combine(cuda_, &Twin::device);
        combine(ref_, &Twin::host);
        expect_elements(residual, 4 * kUnit, 64 * kUnit, "combine");
      }
    }
  }
}

// A token's activation and output do not depend on who shares the batch, on the variant, or on the
// run.
TEST_F(ExpertsCudaTest, BatchesAndVariantsAgreeBitForBit) {
  const Layer big{
      .tokens = 1000, .experts = 8, .hidden = 520, .width = 264, .shared_width = 328, .top_k = 3};
  const Weights routed = expert_weights(DType::BF16, big.experts, big.hidden, big.width);
  const Weights shared = expert_weights(DType::BF16, 1, big.hidden, big.shared_width);
  const Twin x = random(DType::BF16, {big.tokens, big.hidden});
  const Twin residual = random(DType::F32, {big.tokens, big.hidden});
  const std::vector<int32_t> index = choices(big);
  const std::vector<double> gates = normal(big.tokens * big.top_k, 1);
  const auto run_layer = [&](int64_t begin, int64_t count, int variant, bool laid_out = false) {
    cuda::force_product_variant(cuda_, variant);
    Layer layer = big;
    layer.tokens = count;
    const Plan plan = make_plan(
        layer, {index.begin() + begin * big.top_k, index.begin() + (begin + count) * big.top_k});
    const Twin gate =
        from(DType::F32, {count, big.top_k},
             {gates.begin() + begin * big.top_k, gates.begin() + (begin + count) * big.top_k});
    const Run run = outputs(layer, DType::BF16);
    const TensorView part = x.device.rows(begin, begin + count);
    auto device = families(routed, shared, plan, run, part, &Twin::device, &TwinWeights::device);
    if (laid_out) {
      EXPECT_TRUE(dispatch_rows(cuda_, {.rows = device[0].x,
                                        .offsets = plan.offsets.device,
                                        .out = device[0].out,
                                        .readers = 2})
                      .ran());
      device[0].x = {device[0].out};
    }
    experts_up_forward(cuda_, {.operand = device[0].activation.dtype, .families = device});
    experts_down_forward(cuda_, {.operand = device[0].activation.dtype, .families = device});
    const TensorView stream = device_tensor(DType::F32, {count, big.hidden});
    std::vector<unsigned char> start = bytes_of(residual.device.rows(begin, begin + count));
    upload(cuda_, start.data(), stream);
    CombineForward args;
    args.index = plan.index.device, args.gate = gate.device,
    args.row_of_slot = plan.row_of_slot.device;
    args.routed = run.routed_out.device, args.shared = run.shared_out.device,
    args.residual = stream;
    combine_forward(cuda_, args);
    return bytes_of(stream);
  };
  const std::vector<unsigned char> whole = run_layer(0, big.tokens, -1);
  EXPECT_EQ(run_layer(0, big.tokens, -1), whole) << "run to run";
  const int64_t row = big.hidden * 4;
  for (int variant = -1; variant < cuda::num_product_variants(); ++variant) {
    for (const int64_t count : {1, 7, 300}) {
      const std::vector<unsigned char> part = run_layer(123, count, variant);
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + 123 * row, part.size()), 0)
          << count << " tokens, variant " << variant;
    }
    EXPECT_EQ(run_layer(0, big.tokens, variant), whole) << "variant " << variant;
    EXPECT_EQ(run_layer(0, big.tokens, variant, true), whole) << "laid out, variant " << variant;
  }
}

// Rows laid out expert by expert and token by token, some slots absent, whole rows and columns of
// them.
TEST_F(ExpertsCudaTest, RowsAreLaidOutAlikeFromBothSides) {
  for (const Layer& layer : {Layer{.tokens = 301, .experts = 8, .hidden = 520, .top_k = 3},
                             Layer{.tokens = 1000, .experts = 64, .hidden = 1024, .top_k = 6}}) {
    std::vector<int32_t> index = choices(layer);
    for (std::size_t slot = 0; slot < index.size(); slot += 7) index[slot] = -1;
    const Plan plan = make_plan(layer, index);
    const Twin x = random(DType::BF16, {layer.tokens, layer.hidden});
    for (const ColumnRange columns : {ColumnRange{}, ColumnRange{.begin = 8, .count = 504}}) {
      const auto laid_out = [&](const TensorView& row_of_slot) {
        const Twin out =
            output(DType::BF16, {layer.tokens * layer.top_k, columns.count_of(layer.hidden)});
        EXPECT_TRUE(dispatch_rows(cuda_, {.rows = {x.device, plan.token_of_row.device},
                                          .offsets = plan.offsets.device,
                                          .row_of_slot = row_of_slot,
                                          .columns = columns,
                                          .out = out.device,
                                          .readers = 2})
                        .ran());
        return bytes_of(out.device.rows(0, plan.offsets.host.as<int32_t>()[layer.experts]));
      };
      EXPECT_EQ(laid_out(plan.row_of_slot.device), laid_out({}));
    }
  }
}

// Up and down in one launch against two, products kept for a backward pass included: experts
// without rows, with one tile of rows and with several, with and without shared ones.
TEST_F(ExpertsCudaTest, OneLaunchGivesTheBitsOfTwo) {
  const Layer layers[] = {{5, 8, 72, 40, 24, 2},
                          {33, 64, 256, 128, 256, 6},
                          {64, 64, 520, 264, 328, 6},
                          {300, 250, 64, 136, 8, 8}};
  for (const Layer& layer : layers) {
    const Twin x = random(DType::BF16, {layer.tokens, layer.hidden});
    const Weights routed = expert_weights(DType::BF16, layer.experts, layer.hidden, layer.width);
    const Weights shared = expert_weights(DType::BF16, 1, layer.hidden, layer.shared_width);
    std::vector<int32_t> index = choices(layer);
    // One expert that nearly all tokens choose.
    for (std::size_t slot = 0; slot < index.size(); slot += static_cast<std::size_t>(layer.top_k)) {
      const auto own = std::span(index).subspan(slot, static_cast<std::size_t>(layer.top_k));
      if (std::find(own.begin(), own.end(), 3) == own.end()) own[0] = 3;
    }
    const Plan plan = make_plan(layer, index);
    const int64_t used = plan.offsets.host.as<int32_t>()[layer.experts];
    for (const std::size_t first : {std::size_t{0}, std::size_t{1}}) {
      // Fewer rows take smaller tiles.
      if (first == 1 && layer.tokens * layer.top_k <= 4 * layer.experts) continue;
      const auto run_layer = [&](bool one_launch) {
        const Run run = outputs(layer, DType::BF16);
        const auto all =
            families(routed, shared, plan, run, x.device, &Twin::device, &TwinWeights::device);
        const auto own = std::span(all).first(2 - first);
        if (one_launch) {
          EXPECT_TRUE(
              experts_forward(cuda_, {.operand = own[0].activation.dtype, .families = own}).ran());
        } else {
          experts_up_forward(cuda_, {.operand = own[0].activation.dtype, .families = own});
          experts_down_forward(cuda_, {.operand = own[0].activation.dtype, .families = own});
        }
        std::vector<unsigned char> bytes;
        for (const Twin* twin :
             {&run.routed_out, &run.gate_product, &run.up_product, &run.shared_out}) {
          if (twin != &run.shared_out) clear_unused(*twin, used);
          const std::vector<unsigned char> own_bytes = bytes_of(twin->device);
          bytes.insert(bytes.end(), own_bytes.begin(), own_bytes.end());
        }
        return bytes;
      };
      const std::vector<unsigned char> two = run_layer(false);
      for (int repetition = 0; repetition < 20; ++repetition)
        ASSERT_EQ(run_layer(true), two) << layer.tokens << " tokens, repetition " << repetition;
    }
  }
}

// Combine follows the same tree as the CPU: equal to ref<float> bit for bit.
TEST_F(ExpertsCudaTest, CombineTreeEqualsTheReferenceBits) {
  for (const int top_k : {1, 2, 3, 6, 8, 11}) {
    const Layer layer{
        .tokens = 90, .experts = 64, .hidden = 40, .width = 8, .shared_width = 8, .top_k = top_k};
    const Plan plan = make_plan(layer, choices(layer));
    const Twin routed = random(DType::BF16, {layer.tokens * top_k, layer.hidden});
    const Twin shared = random(DType::BF16, {layer.tokens, layer.hidden});
    const Twin residual = random(DType::F32, {layer.tokens, layer.hidden});
    const auto on_host = [&](const TensorView& device) {
      const TensorView host = host_tensor(device.dtype, device.shape);
      download(cuda_, device, host.data);
      return host;
    };
    CombineForward host;
    host.index = plan.index.host, host.row_of_slot = plan.row_of_slot.host,
    host.gate = on_host(plan.gate.device);
    host.routed = on_host(routed.device), host.shared = on_host(shared.device),
    host.residual = on_host(residual.device);
    combine_forward(ref_, host);
    CombineForward device;
    device.index = plan.index.device, device.row_of_slot = plan.row_of_slot.device,
    device.gate = plan.gate.device;
    device.routed = routed.device, device.shared = shared.device, device.residual = residual.device;
    combine_forward(cuda_, device);
    const auto bytes = bytes_of(residual.device);
    EXPECT_EQ(std::memcmp(bytes.data(), host.residual.data, bytes.size()), 0) << "top " << top_k;
  }
}

// With the router's share in the same pass against a combine and a product that adds to it: odd
// numbers of tokens, absent slots and tokens without experts, whole rows and columns of them.
TEST_F(ExpertsCudaTest, CombineOnTheWayBackGivesTheBitsOfItsParts) {
  for (const Layer& layer : {Layer{.tokens = 301, .experts = 8, .hidden = 520, .top_k = 3},
                             Layer{.tokens = 70, .experts = 60, .hidden = 264, .top_k = 8},
                             Layer{.tokens = 1000, .experts = 64, .hidden = 1024, .top_k = 6}}) {
    std::vector<int32_t> index = choices(layer);
    for (std::size_t slot = 0; slot < index.size(); slot += 7) index[slot] = -1;
    for (int64_t slot = 0; slot < layer.top_k; ++slot)
      index[static_cast<std::size_t>(5 * layer.top_k + slot)] = -1;
    const Plan plan = make_plan(layer, index);
    const Twin d_logits = random(DType::F32, {layer.tokens, layer.experts});
    const WeightStack centroids =
        transpose_of(weights(DType::F32, 1, layer.experts, layer.hidden, 0.1).device);
    for (const ColumnRange columns : {ColumnRange{}, ColumnRange{.begin = 8, .count = 248}}) {
      const int64_t count = columns.count_of(layer.hidden);
      const Twin routed = random(DType::BF16, {layer.tokens * layer.top_k, count});
      const Twin shared = random(DType::BF16, {layer.tokens, count});
      for (const TensorView& with_shared : {shared.device, TensorView{}}) {
        const auto run = [&](bool one_pass) {
          const Twin out = output(DType::F32, {layer.tokens, layer.hidden});
          // Columns that are not these stay as they are: they must hold numbers for the product.
          if (!columns.is_whole()) zero(cuda_, out.device.data, out.device.num_bytes());
          const CombineForward combine{.index = plan.index.device,
                                       .row_of_slot = plan.row_of_slot.device,
                                       .columns = columns,
                                       .routed = routed.device,
                                       .shared = with_shared,
                                       .residual = out.device,
                                       .store = Store::assign};
          if (one_pass) {
            EXPECT_TRUE(combine_backward(cuda_, {.combine = combine,
                                                 .d_logits = d_logits.device,
                                                 .centroids = centroids})
                            .ran());
          } else {
            combine_forward(cuda_, combine);
            matmul_forward(cuda_, {.operand = d_logits.device.dtype,
                                   .x = d_logits.device,
                                   .weight = centroids,
                                   .out = out.device,
                                   .store = Store::accumulate});
          }
          std::vector<unsigned char> bits;
          const std::vector<unsigned char> all = bytes_of(out.device);
          for (int64_t t = 0; t < layer.tokens; ++t) {
            const auto begin = all.begin() + (t * layer.hidden + columns.begin) * 4;
            bits.insert(bits.end(), begin, begin + count * 4);
          }
          return bits;
        };
        EXPECT_EQ(run(true), run(false)) << layer.tokens << " tokens, " << count << " columns";
      }
    }
  }
}

}  // namespace
}  // namespace dsmoe::kernels

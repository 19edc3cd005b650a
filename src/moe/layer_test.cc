#include "moe/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/pack.h"
#include "kernels/table.h"
#include "moe/plan.h"

namespace dsmoe::moe {
namespace {

using kernels::Context;
using kernels::KernelTable;

// Rows of experts that were computed, counted by a table that looks before it calls on.
int64_t routed_rows = 0;
int64_t shared_rows = 0;

void counting_up(const Context& context, const kernels::ExpertsUpForward& args) {
  for (const kernels::ExpertFamily& family : args.families) {
    const int32_t rows = family.offsets.as<int32_t>()[family.gate.stack.count];
    (family.gate.stack.count > 1 ? routed_rows : shared_rows) += rows;
  }
  kernels::ref_table().experts_up_forward(context, args);
}

struct Sizes {
  int64_t tokens = 9, hidden = 12, width = 10, experts = 5, top_k = 2, shared_width = 14;
};

// A layer with random weights in double.
class Layer {
 public:
  explicit Layer(const Sizes& sizes) : sizes_(sizes) {
    table_ = kernels::ref_table();
    table_.experts_up_forward = counting_up;
    weights_.centroids = stack(1, sizes.experts, sizes.hidden);
    weights_.routed = experts(sizes.experts, sizes.width);
    if (sizes.shared_width > 0) weights_.shared = experts(1, sizes.shared_width);
    memory_ = used_part(allocate_memory({.max_tokens = sizes.tokens,
                                         .max_sequences = 1,
                                         .hidden = sizes.hidden,
                                         .num_experts = sizes.experts,
                                         .top_k = sizes.top_k,
                                         .routed_width = sizes.width,
                                         .shared_width = sizes.shared_width,
                                         .operand = DType::F32},
                                        arena_),
                        sizes.tokens, 1, sizes.top_k);
    x_ = random({sizes.tokens, sizes.hidden});
    out_ = arena_.tensor("out", DType::F32, {sizes.tokens, sizes.hidden});
    range_ = arena_.tensor("range", DType::I32, {2});
    range_.as<int32_t>()[1] = static_cast<int32_t>(sizes.tokens);
  }

  void run(const TensorView& experts_of_token = {}) {
    routed_rows = shared_rows = 0;
    std::fill_n(out_.as<float>(), out_.num_elements(), 0.0f);
    layer_forward(context_, {.rule = {.top_k = static_cast<int>(sizes_.top_k)},
                             .weights = weights_,
                             .tape = memory_.tape,
                             .workspace = memory_.workspace,
                             .x = x_,
                             .token_range = range_,
                             .sequence_starts = range_,
                             .experts_of_token = experts_of_token,
                             .residual = out_});
  }

  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView view =
        arena_.tensor("integers", DType::I32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), view.as<int32_t>());
    return view;
  }

  LayerWeights weights_;
  LayerMemory memory_;
  TensorView x_, out_, range_;

 private:
  TensorView random(const kernels::Shape& shape) {
    const TensorView view = arena_.tensor("values", DType::F32, shape);
    for (int64_t i = 0; i < view.num_elements(); ++i)
      view.as<float>()[i] = 2 * rng_.uniform_f32(next_++) - 1;
    return view;
  }
  WeightStack stack(int64_t count, int64_t n, int64_t k) {
    WeightStack stack{
        .dtype = DType::F32, .layout = table_.weight_layout, .count = count, .n = n, .k = k};
    stack.data = arena_.bytes("weights", stack.num_bytes());
    for (int64_t m = 0; m < count; ++m) {
      kernels::pack_weight(context_, {.source = random({n, k}), .target = stack, .matrix_idx = m});
    }
    return stack;
  }
  ExpertWeights experts(int64_t count, int64_t width) {
    return {.gate = stack(count, width, sizes_.hidden),
            .up = stack(count, width, sizes_.hidden),
            .down = stack(count, sizes_.hidden, width)};
  }

  Sizes sizes_;
  KernelTable table_;
  ThreadPool pool_{1};
  Context context_{.table = &table_, .pool = &pool_};
  tensor::Arena arena_{"test"};
  Rng rng_{3, RngPurpose::test};
  uint64_t next_ = 0;
};

TEST(Layer, ATokenIsComputedInItsExpertsOnly) {
  Layer layer({.tokens = 9, .experts = 5, .top_k = 2});
  layer.run();
  EXPECT_EQ(routed_rows, 9 * 2);
  EXPECT_EQ(shared_rows, 9);
}

TEST(Layer, ExpertsPerTokenMayDiffer) {
  Layer layer({.tokens = 4, .experts = 5, .top_k = 3});
  layer.run(layer.integers({3, 0, 1, 2}));
  EXPECT_EQ(routed_rows, 6);
  EXPECT_EQ(layer.memory_.tape.index.as<int32_t>()[3], -1);
  EXPECT_EQ(layer.memory_.tape.gate.as<float>()[3], 0.0f);
}

TEST(Layer, NoSharedExperts) {
  Layer layer({.shared_width = 0});
  layer.run();
  EXPECT_EQ(shared_rows, 0);
}

TEST(Layer, ATokenWithoutFiniteScoresIsToldAndDisturbsNobody) {
  Layer layer({});
  layer.run();
  EXPECT_EQ(layer.memory_.tape.bad_token.as<int32_t>()[0], -1);
  const std::vector<float> expected(layer.out_.as<float>(), layer.out_.as<float>() + 9 * 12);
  layer.x_.as<float>()[3 * 12 + 5] = std::nanf("");
  layer.x_.as<float>()[7 * 12] = std::numeric_limits<float>::infinity();
  layer.run();
  EXPECT_EQ(layer.memory_.tape.bad_token.as<int32_t>()[0], 3);
  EXPECT_EQ(layer.memory_.tape.index.as<int32_t>()[3 * 2], -1);
  EXPECT_EQ(routed_rows, 7 * 2);
  for (int64_t t = 0; t < 9; ++t) {
    if (t == 3 || t == 7) continue;
    EXPECT_EQ(std::memcmp(&expected[static_cast<std::size_t>(t) * 12],
                          layer.out_.as<float>() + t * 12, 12 * sizeof(float)),
              0)
        << "token " << t;
  }
}

// The plan's own check accepts what plan_build makes and sees every kind of damage.
TEST(Plan, CheckSeesDamage) {
  Layer layer({.tokens = 8, .experts = 4, .top_k = 2});
  layer.run();
  const kernels::DispatchPlan& plan = layer.memory_.tape.plan;
  const auto check = [&] { check_plan(layer.memory_.tape.index, layer.range_, plan); };
  EXPECT_NO_THROW(check());
  for (const TensorView& view :
       {plan.expert_offsets, plan.sequence_offsets, plan.token_of_row, plan.row_of_slot}) {
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      int32_t& value = view.as<int32_t>()[i];
      ++value;
      EXPECT_THROW(check(), Error) << i;
      --value;
    }
  }
  EXPECT_NO_THROW(check());
}

TEST(Plan, RowsAreSortedByExpertSequenceAndToken) {
  tensor::Arena arena("test");
  const auto integers = [&](const kernels::Shape& shape, std::vector<int32_t> values) {
    const TensorView view = arena.tensor("integers", DType::I32, shape);
    std::copy(values.begin(), values.end(), view.as<int32_t>());
    return view;
  };
  const TensorView index = integers({4, 2}, {2, 0, 0, 2, 2, -1, 0, 1});
  const TensorView starts = integers({3}, {0, 2, 4});
  const kernels::DispatchPlan plan =
      allocate_plan({.num_experts = 3, .max_sequences = 2, .max_tokens = 4, .top_k = 2}, arena);
  const Context context{.table = &kernels::ref_table()};
  build_plan(context, index, starts, plan);
  const auto values = [](const TensorView& view, int64_t count) {
    return std::vector<int32_t>(view.as<int32_t>(), view.as<int32_t>() + count);
  };
  EXPECT_EQ(values(plan.expert_offsets, 4), (std::vector<int32_t>{0, 3, 4, 7}));
  EXPECT_EQ(values(plan.token_of_row, 7), (std::vector<int32_t>{0, 1, 3, 3, 0, 1, 2}));
  EXPECT_EQ(values(plan.sequence_offsets, 9), (std::vector<int32_t>{0, 2, 3, 3, 3, 4, 4, 6, 7}));
  EXPECT_EQ(values(plan.row_of_slot, 8), (std::vector<int32_t>{4, 0, 1, 5, 6, -1, 2, 3}));
}

}  // namespace
}  // namespace dsmoe::moe

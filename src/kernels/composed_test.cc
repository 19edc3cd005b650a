// A composed step takes the fused kernel where it runs, and the ops it stands for where it declines
// or is absent.
#include "kernels/composed.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels {
namespace {

// The ops that ran, in their order. The reference's, each behind a note.
std::vector<std::string> ran_ops;

#define DSMOE_NOTE(name, Arguments)                                  \
  void noted_##name(const Context& context, const Arguments& args) { \
    ran_ops.emplace_back(#name);                                     \
    ref_table().name(context, args);                                 \
  }
DSMOE_OPS(DSMOE_NOTE)
#undef DSMOE_NOTE

KernelTable noting_table() {
  KernelTable table = ref_table();
#define DSMOE_ENTRY(name, Arguments) table.name = noted_##name;
  DSMOE_OPS(DSMOE_ENTRY)
#undef DSMOE_ENTRY
  table.takes_parts = [](const Context&, const TakesParts&) { return true; };
  return table;
}

using Names = std::vector<std::string>;

class Composed : public ::testing::Test {
 protected:
  Composed() : table_(noting_table()) { ran_ops.clear(); }

  TensorView tensor(DType type, tensor::Shape shape) {
    memory_.emplace_back(64 * 64, 0);
    return {.data = memory_.back().data(), .dtype = type, .shape = shape};
  }
  WeightStack weight(int64_t count, int64_t n, int64_t k) {
    return {.data = tensor(DType::F32, {count * n, k}).data, .count = count, .n = n, .k = k};
  }

  // Two routed experts of width 5 over four rows of three tokens, and a shared one.
  std::vector<ExpertFamily> families(int64_t columns) {
    const TensorView index = tensor(DType::I32, {4});
    const TensorView offsets = tensor(DType::I32, {3});
    offsets.as<int32_t>()[1] = 1;
    offsets.as<int32_t>()[2] = 4;
    const TensorView all = tensor(DType::I32, {2});
    all.as<int32_t>()[1] = 3;
    const TensorView x = tensor(DType::F32, {3, kHidden});
    return {{.gate = weight(2, 5, kHidden),
             .up = weight(2, 5, kHidden),
             .down = weight(2, kHidden, 5),
             .offsets = offsets,
             .x = {x, index},
             .activation = tensor(DType::F32, {4, 5}),
             .out = tensor(DType::F32, {4, columns})},
            {.gate = weight(1, 5, kHidden),
             .up = weight(1, 5, kHidden),
             .down = weight(1, kHidden, 5),
             .offsets = all,
             .x = {x},
             .activation = tensor(DType::F32, {3, 5}),
             .out = tensor(DType::F32, {3, columns})}};
  }
  void run_experts(const std::vector<ExpertFamily>& list, const ColumnRange& columns = {}) {
    experts_part(
        context_,
        {.families = list, .columns = columns, .x_rows = tensor(DType::F32, {4, kHidden})});
  }

  static constexpr int64_t kHidden = 6;
  KernelTable table_;
  ThreadPool pool_{1};
  const Context context_{.table = &table_, .pool = &pool_};

 private:
  std::vector<std::vector<float>> memory_;
};

TEST_F(Composed, ExpertsAreTheFusedKernelOrBothProducts) {
  const std::vector<ExpertFamily> list = families(kHidden);
  run_experts(list);
  EXPECT_EQ(ran_ops, (Names{"experts_up_forward", "experts_down_forward"}));

  ran_ops.clear();
  table_.experts_forward = [](const Context&, const ExpertsForward&) -> Attempt {
    ran_ops.emplace_back("fused");
    return {};
  };
  run_experts(list);
  EXPECT_EQ(ran_ops, (Names{"fused"}));

  ran_ops.clear();
  table_.experts_forward = [](const Context&, const ExpertsForward&) -> Attempt {
    return {"a test says so"};
  };
  run_experts(list);
  EXPECT_EQ(ran_ops, (Names{"experts_up_forward", "experts_down_forward"}));
}

TEST_F(Composed, ThePartThatBeginsAtZeroComputesTheActivations) {
  table_.experts_forward = [](const Context&, const ExpertsForward&) -> Attempt {
    ran_ops.emplace_back("fused");
    return {};
  };
  const std::vector<ExpertFamily> list = families(3);
  run_experts(list, {.begin = 0, .count = 3});
  run_experts(list, {.begin = 3, .count = 3});
  EXPECT_EQ(ran_ops, (Names{"experts_up_forward", "experts_down_forward", "experts_down_forward"}));
}

TEST_F(Composed, RowsAreLaidOutForTheExpertsThatMakeMoreThanTheyRead) {
  static TensorView laid_out;
  table_.dispatch_rows = [](const Context&, const DispatchRows& args) -> Attempt {
    laid_out = args.out;
    return {};
  };
  static Rows read;
  table_.experts_up_forward = [](const Context&, const ExpertsUpForward& args) {
    read = args.families[0].x;
  };
  const std::vector<ExpertFamily> list = families(kHidden);
  run_experts(list);
  EXPECT_EQ(read.x.data, laid_out.data);
  EXPECT_FALSE(read.index);

  table_.dispatch_rows = [](const Context&, const DispatchRows&) -> Attempt {
    return {"a test says so"};
  };
  run_experts(list);
  EXPECT_EQ(read.x.data, list[0].x.x.data);
  EXPECT_TRUE(read.index);
}

TEST_F(Composed, InputGradientIsCombineAndTheRoutersProduct) {
  CombineBackward args{.combine = {.index = tensor(DType::I32, {3, 1}),
                                   .row_of_slot = tensor(DType::I32, {3, 1}),
                                   .routed = tensor(DType::F32, {3, kHidden}),
                                   .residual = tensor(DType::F32, {3, kHidden}),
                                   .store = Store::assign},
                       .d_logits = tensor(DType::F32, {3, 2}),
                       .centroids = weight(1, kHidden, 2)};
  input_gradient(context_, args);
  EXPECT_EQ(ran_ops, (Names{"combine_forward", "matmul_forward"}));

  ran_ops.clear();
  table_.combine_backward = [](const Context&, const CombineBackward&) -> Attempt {
    ran_ops.emplace_back("fused");
    return {};
  };
  input_gradient(context_, args);
  EXPECT_EQ(ran_ops, (Names{"fused"}));

  // A dense layer has no router, and nothing to fuse.
  ran_ops.clear();
  args.d_logits = {};
  args.centroids = {};
  input_gradient(context_, args);
  EXPECT_EQ(ran_ops, (Names{"combine_forward"}));
}

TEST_F(Composed, MostLikelyIsTheHeadAndArgmax) {
  const MostLikely args{.x = tensor(DType::F32, {2, kHidden}),
                        .weight = weight(1, 7, kHidden),
                        .logits = tensor(DType::F32, {2, 7}),
                        .index = tensor(DType::I32, {2})};
  most_likely(context_, args);
  EXPECT_EQ(ran_ops, (Names{"matmul_forward", "argmax_forward"}));

  ran_ops.clear();
  table_.few_tokens_head = [](const Context&, const FewTokensHead&) -> Attempt {
    ran_ops.emplace_back("fused");
    return {};
  };
  most_likely(context_, args);
  EXPECT_EQ(ran_ops, (Names{"fused"}));
}

TEST_F(Composed, HeadsAreProjectedInOneLaunchOrTwoOrThree) {
  const TensorView ones = tensor(DType::F32, {2, 2});
  ProjectHeads args{.residual = tensor(DType::F32, {2, kHidden}),
                    .norm_weight = tensor(DType::F32, {kHidden}),
                    .x = tensor(DType::F32, {2, kHidden}),
                    .weight = weight(1, 12, kHidden),
                    .cos = ones,
                    .sin = ones,
                    .position = tensor(DType::I32, {2}),
                    .kv_slot = tensor(DType::I32, {2}),
                    .q = tensor(DType::F32, {2, 1, 4}),
                    .kv = {.keys = tensor(DType::F32, {1}).data,
                           .values = tensor(DType::F32, {1}).data,
                           .num_pages = 1,
                           .shape = {.heads = 1, .key_width = 4, .value_width = 4}},
                    .qkv = tensor(DType::F32, {2, 12})};
  args.kv.shape.layout = table_.weight_layout;
  project_heads(context_, args);
  EXPECT_EQ(ran_ops, (Names{"rms_norm_forward", "matmul_forward", "rope_forward"}));

  ran_ops.clear();
  table_.qkv_forward = [](const Context&, const QkvForward&) -> Attempt {
    ran_ops.emplace_back("two");
    return {};
  };
  project_heads(context_, args);
  EXPECT_EQ(ran_ops, (Names{"rms_norm_forward", "two"}));

  ran_ops.clear();
  table_.few_tokens_qkv = [](const Context&, const FewTokensQkv&) -> Attempt {
    ran_ops.emplace_back("one");
    return {};
  };
  project_heads(context_, args);
  EXPECT_EQ(ran_ops, (Names{"one"}));

  // What a backward pass reads has to be written.
  ran_ops.clear();
  args.keeps_x = true;
  project_heads(context_, args);
  EXPECT_EQ(ran_ops, (Names{"rms_norm_forward", "two"}));
}

}  // namespace
}  // namespace dsmoe::kernels

// Equal parameters by arithmetic and by the tensors themselves; refusals with numbers.
#include "train/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace dsmoe::train {
namespace {

using model::ModelConfig;

// The paper's 2B shape, small: 1 shared + 7 of 63, m = 4.
ModelConfig paper_shape() {
  ModelConfig config;
  config.vocab_size = 320;
  config.hidden_size = 32;
  config.num_hidden_layers = 3;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.n_routed_experts = 63;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 7;
  config.moe_intermediate_size = 8;
  config.check("test");
  return config;
}

std::string refusal(const ModelConfig& base, const ComparisonShape& shape) {
  try {
    compared_models(base, shape);
  } catch (const Error& error) {
    const bool is_option = !shape.shared.empty() || !shape.fp32.empty();
    EXPECT_EQ(error.kind(), is_option ? ErrorKind::usage : ErrorKind::input);
    return error.what();
  }
  return "";
}

// Counted from names and shapes instead of the config's arithmetic.
ExpertParameters count_tensors(const ModelConfig& config) {
  ExpertParameters counts;
  for (const tensor::TensorSpec& spec : model::expected_tensors(config)) {
    const int64_t size = spec.shape.num_elements();
    if (spec.name.find(".mlp.gate.") != std::string::npos) {
      counts.router += size;
    } else if (spec.name.find(".mlp.") != std::string::npos) {
      counts.total += size;
    }
  }
  counts.active = counts.total - (config.num_parameters() - config.num_active_parameters());
  return counts;
}

TEST(Comparison, MakesThePapersArchitectures) {
  const auto models = compared_models(paper_shape(), {.segments = 4, .upper_bound = true});
  ASSERT_EQ(models.size(), 5u);
  EXPECT_EQ(models[0].config.n_routed_experts, 0);
  EXPECT_EQ(models[0].config.intermediate_size, 64);
  EXPECT_EQ(models[1].config.n_routed_experts, 16);
  EXPECT_EQ(models[1].config.num_experts_per_tok, 2);
  EXPECT_EQ(models[1].config.moe_intermediate_size, 32);
  EXPECT_EQ(models[2].config.n_routed_experts, 64);
  EXPECT_EQ(models[2].config.num_experts_per_tok, 8);
  EXPECT_EQ(models[2].config.n_shared_experts, 0);
  EXPECT_EQ(models[3].config.n_shared_experts, 1);
  EXPECT_EQ(models[3].title, "(c) 1 shared + top 7 of 63");
  EXPECT_EQ(models[4].config.intermediate_size, 512);
}

TEST(Comparison, ExpertParametersAreEqualAndTheRoutersAlmost) {
  const auto models = compared_models(paper_shape(), {.segments = 4, .upper_bound = true});
  const ExpertParameters last = count_tensors(models[3].config);
  EXPECT_EQ(last.total, 3 * 3 * 32 * 8 * 64);
  EXPECT_EQ(last.active, 3 * 3 * 32 * 8 * 8);
  for (const ComparedModel& model : models) {
    const ExpertParameters found = count_tensors(model.config);
    const ExpertParameters computed = count_expert_parameters(model.config, paper_shape());
    EXPECT_EQ(found.total, computed.total) << model.title;
    EXPECT_EQ(found.active, computed.active) << model.title;
    EXPECT_EQ(found.router, computed.router) << model.title;
    if (model.budget != Budget::active) {
      EXPECT_EQ(found.total, last.total) << model.title;
    }
    if (model.budget != Budget::upper_bound) {
      EXPECT_EQ(found.active, last.active) << model.title;
    }
    EXPECT_EQ(model.config.num_parameters() - found.total - found.router,
              models[3].config.num_parameters() - last.total - last.router)
        << model.title;
  }
  EXPECT_EQ(count_tensors(models[2].config).router - last.router, 3 * 32);
}

TEST(Comparison, OtherExpertCountsAreRefusedWithTheNumbers) {
  auto models = compared_models(paper_shape(), {.segments = 4});
  models[1].config.moe_intermediate_size += 1;
  try {
    check_equal_parameters(models);
    FAIL() << "an expert wider by one passed";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("152064"), std::string::npos) << text;
    EXPECT_NE(text.find("147456"), std::string::npos) << text;
    EXPECT_NE(text.find("(a) top 2 of 16"), std::string::npos) << text;
  }
}

TEST(Comparison, RefusesShapesThatDoNotDivide) {
  ModelConfig config = paper_shape();
  EXPECT_NE(refusal(config, {.segments = 3}).find("1 + 63 = 64"), std::string::npos);
  EXPECT_NE(refusal(config, {.segments = 3}).find("possible here: 2, 4, 8"), std::string::npos);
  EXPECT_NE(refusal(config, {.segments = 1}), "");
  config.num_experts_per_tok = 6;
  EXPECT_NE(refusal(config, {.segments = 4}).find("1 + 6 = 7"), std::string::npos);
}

TEST(Comparison, RefusesConfigsThatAreNotTheLastArchitecture) {
  ModelConfig config = paper_shape();
  config.n_shared_experts = 0;
  EXPECT_NE(refusal(config, {}).find("n_shared_experts"), std::string::npos);
  config = paper_shape();
  config.topk_method = model::TopkMethod::noaux_tc;
  EXPECT_NE(refusal(config, {}).find("noaux_tc"), std::string::npos);
  config = paper_shape();
  config.n_routed_experts = config.n_shared_experts = config.num_experts_per_tok = 0;
  config.intermediate_size = 64;
  EXPECT_NE(refusal(config, {}).find("no MoE layer"), std::string::npos);
}

TEST(Comparison, DenseLayersOfTheBaseMustHaveTheDenseModelsWidth) {
  ModelConfig config = paper_shape();
  config.first_k_dense_replace = 1;
  config.intermediate_size = 64;
  EXPECT_EQ(refusal(config, {}), "");
  EXPECT_NE(refusal(config, {.upper_bound = true}).find("512"), std::string::npos);
  config.intermediate_size = 96;
  EXPECT_NE(refusal(config, {}).find("intermediate_size 96"), std::string::npos);
}

TEST(Comparison, OtherNumbersOfSharedExpertsKeepTheParameters) {
  const auto models = compared_models(paper_shape(), {.segments = 4, .shared = {2, 4}});
  ASSERT_EQ(models.size(), 6u);
  EXPECT_EQ(models[4].name, "c-shared-2");
  EXPECT_EQ(models[4].title, "(c) 2 shared + top 6 of 62");
  EXPECT_EQ(models[5].config.n_shared_experts, 4);
  EXPECT_EQ(models[5].config.n_routed_experts, 60);
  EXPECT_EQ(models[5].config.num_experts_per_tok, 4);
  const ExpertParameters base = count_tensors(models[3].config);
  for (const std::size_t i : {4u, 5u}) {
    EXPECT_EQ(models[i].less, "c");
    EXPECT_EQ(count_tensors(models[i].config).total, base.total);
    EXPECT_EQ(count_tensors(models[i].config).active, base.active);
  }
  for (const int64_t none : {0, 1, 8, 9}) {
    EXPECT_NE(refusal(paper_shape(), {.shared = {none}}).find("--shared"), std::string::npos)
        << none;
  }
}

TEST(Comparison, ModelsAgainInFp32) {
  ModelConfig config = paper_shape();
  config.torch_dtype = tensor::DType::BF16;
  const auto models = compared_models(config, {.shared = {2}, .fp32 = {"b", "c-shared-2"}});
  ASSERT_EQ(models.size(), 7u);
  EXPECT_EQ(models[5].name, "b-fp32");
  EXPECT_EQ(models[5].less, "b");
  EXPECT_EQ(models[5].config.torch_dtype, tensor::DType::F32);
  EXPECT_EQ(models[6].config.n_shared_experts, 2);
  EXPECT_EQ(models[2].config.torch_dtype, tensor::DType::BF16);
  EXPECT_NE(refusal(config, {.fp32 = {"d"}}).find("dense, a, b, c"), std::string::npos);
  config.torch_dtype = tensor::DType::F32;
  EXPECT_NE(refusal(config, {.fp32 = {"b"}}).find("fp32 already"), std::string::npos);
}

// Of published tables of Student's t.
TEST(Comparison, IntervalOfTheMean) {
  const Spread spread{.mean = 1, .deviation = 2};
  EXPECT_TRUE(std::isinf(half_width_95(spread, 1)));
  for (const auto& [count, quantile] :
       {std::pair(2, 12.706), std::pair(3, 4.303), std::pair(10, 2.262), std::pair(11, 2.228),
        std::pair(16, 2.131), std::pair(31, 2.042)}) {
    EXPECT_NEAR(half_width_95(spread, static_cast<std::size_t>(count)) * std::sqrt(count) / 2,
                quantile, 6e-4)
        << count;
  }
}

TEST(Comparison, SpreadOverSeeds) {
  const double values[] = {1.0, 2.0, 4.0};
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.mean, 7.0 / 3);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt(7.0 / 3));
  EXPECT_EQ(spread.lowest, 1);
  EXPECT_EQ(spread.highest, 4);
  EXPECT_EQ(spread_of(std::span(values, 1)).deviation, 0);
}

}  // namespace
}  // namespace dsmoe::train

// Random weights: their distribution, and that nothing but seed, name and place decides them.
#include "model/initialise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace dsmoe::model {
namespace {

ModelConfig small() {
  ModelConfig config{.vocab_size = 300,
                     .hidden_size = 64,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 4,
                     .head_dim = 16,
                     .intermediate_size = 96,
                     .attention_bias = true,
                     .initializer_range = 0.006,
                     .n_routed_experts = 4,
                     .n_shared_experts = 1,
                     .num_experts_per_tok = 2,
                     .moe_intermediate_size = 32};
  config.check("test");
  return config;
}

TEST(Initialise, MatricesAreNormalNormsOneBiasesZero) {
  const ModelConfig config = small();
  InitialWeights weights(config, 1);
  int num_matrices = 0, num_norms = 0, num_biases = 0;
  for (const Parameter& spec : inventory(config).parameters) {
    const tensor::TensorView view = weights.tensor(spec).elements;
    ASSERT_EQ(view.shape, spec.shape);
    const std::span<const float> values(view.as<float>(), view.num_elements());
    if (spec.shape.rank() == 2) {
      ++num_matrices;
      double sum = 0, squares = 0;
      for (const float value : values) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
      const auto n = static_cast<double>(values.size());
      // Mean and variance of n normals lie within five standard errors.
      EXPECT_NEAR(sum / n, 0, 5 * 0.006 / std::sqrt(n)) << spec.name;
      EXPECT_NEAR(squares / n, 0.006 * 0.006, 5 * 0.006 * 0.006 * std::sqrt(2 / n)) << spec.name;
    } else {
      const bool is_norm = spec.name.find("norm") != std::string::npos;
      (is_norm ? num_norms : num_biases) += 1;
      for (const float value : values) ASSERT_EQ(value, is_norm ? 1.0f : 0.0f) << spec.name;
    }
    weights.release(spec);
  }
  EXPECT_GT(num_matrices, 10);
  EXPECT_EQ(num_norms, 5);
  EXPECT_EQ(num_biases, 8);
}

TEST(Initialise, DependsOnSeedNameAndPlaceAlone) {
  const ModelConfig config = small();
  const Parameter spec{.name = "model.layers.0.mlp.gate.weight", .shape = {4, 64}};
  const Parameter other{.name = "model.layers.1.mlp.gate.weight", .shape = {4, 64}};
  std::vector<float> whole(256), pieces(256), another(256);
  initial_values(config, spec, 3, 0, whole);
  initial_values(config, spec, 3, 0, std::span(pieces).first(7));
  initial_values(config, spec, 3, 7, std::span(pieces).subspan(7));
  EXPECT_EQ(pieces, whole);
  initial_values(config, other, 3, 0, another);
  EXPECT_NE(another, whole);
  initial_values(config, spec, 4, 0, another);
  EXPECT_NE(another, whole);
}

TEST(Initialise, RefusesF16) {
  ModelConfig config = small();
  config.torch_dtype = tensor::DType::F16;
  EXPECT_THROW(InitialWeights(config, 1), Error);
}

}  // namespace
}  // namespace dsmoe::model

#include "model/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"

namespace dsmoe::model {
namespace {

using tensor::DType;
using tensor::Shape;

ModelConfig shipped(const std::string& name) {
  const std::string path = std::string(DSMOE_SOURCE_DIR) + "/configs/" + name + ".json";
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return parse_config(text.str(), path);
}

Json small() {
  return parse_json(
      R"({"model_type":"deepseek","vocab_size":97,"hidden_size":40,"num_hidden_layers":3,
    "num_attention_heads":5,"num_key_value_heads":1,"intermediate_size":33,"moe_intermediate_size":7,
    "n_routed_experts":5,"n_shared_experts":1,"num_experts_per_tok":3,"first_k_dense_replace":1})",
      "small");
}

Json changed(Json base, const std::string& patch) {
  base.merge_patch(parse_json(patch, "patch"));
  return base;
}

ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }

TEST(Config, DeepSeekMoe16B) {
  const ModelConfig config = shipped("deepseek-moe-16b");
  EXPECT_EQ(config.num_parameters(), 16'375'728'128);
  EXPECT_EQ(config.num_active_parameters(), 2'828'650'496);
  EXPECT_EQ(config.num_tensors(), 5466);
  EXPECT_EQ(config.kv_bytes_per_token(DType::BF16), 229'376);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.num_moe_layers(), 27);
  EXPECT_FALSE(config.is_moe_layer(0));
  EXPECT_EQ(config.torch_dtype, DType::BF16);
  // 2 * (active - embedding - norms) + 4 * 28 * 2048 * context.
  const double products = 2.0 * (2'828'650'496 - 209'715'200 - 116'736);
  EXPECT_EQ(config.forward_flops_per_token(0), products);
  EXPECT_EQ(config.forward_flops_per_token(4096), products + 4.0 * 28 * 2048 * 4096);
}

TEST(Config, TensorsAddUpToTheParameters) {
  std::vector<ModelConfig> configs = {shipped("deepseek-moe-16b"), parse(small())};
  configs.push_back(
      parse(changed(small(), R"({"attention_bias":true,"tie_word_embeddings":true})")));
  configs.push_back(parse(
      changed(small(), R"({"model_type":"dsmoe","topk_method":"noaux_tc","moe_layer_freq":2})")));
  configs.push_back(parse(changed(small(), R"({"n_routed_experts":null})")));
  configs.push_back(
      parse(changed(small(), R"({"n_shared_experts":0,"head_dim":6,"num_key_value_heads":5})")));
  for (const ModelConfig& config : configs) {
    int64_t count = 0;
    std::set<std::string> names;
    for (const auto& spec : expected_tensors(config)) {
      count += spec.shape.num_elements();
      names.insert(spec.name);
    }
    EXPECT_EQ(count, config.num_parameters());
    EXPECT_EQ(static_cast<int64_t>(names.size()), config.num_tensors());
  }
}

TEST(Config, TensorNamesAndShapes) {
  std::map<std::string, Shape> shapes;
  const ModelConfig config =
      parse(changed(small(), R"({"model_type":"dsmoe","topk_method":"noaux_tc","n_shared_experts":2,
                                 "attention_bias":true,"torch_dtype":"bfloat16"})"));
  for (const auto& spec : expected_tensors(config)) {
    shapes[spec.name] = spec.shape;
    EXPECT_EQ(spec.dtype, spec.name.ends_with("correction_bias") ? DType::F32 : DType::BF16);
  }
  EXPECT_EQ(shapes.at("model.embed_tokens.weight"), Shape({97, 40}));
  EXPECT_EQ(shapes.at("lm_head.weight"), Shape({97, 40}));
  EXPECT_EQ(shapes.at("model.norm.weight"), Shape({40}));
  EXPECT_EQ(shapes.at("model.layers.2.input_layernorm.weight"), Shape({40}));
  EXPECT_EQ(shapes.at("model.layers.2.post_attention_layernorm.weight"), Shape({40}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_proj.weight"), Shape({40, 40}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.k_proj.weight"), Shape({8, 40}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.v_proj.bias"), Shape({8}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.o_proj.bias"), Shape({40}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_proj.weight"), Shape({33, 40}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.weight"), Shape({40, 33}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.gate.weight"), Shape({5, 40}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.gate.e_score_correction_bias"), Shape({5}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.4.up_proj.weight"), Shape({7, 40}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.4.down_proj.weight"), Shape({40, 7}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.shared_experts.up_proj.weight"), Shape({14, 40}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.shared_experts.down_proj.weight"), Shape({40, 14}));
}

}  // namespace
}  // namespace dsmoe::model

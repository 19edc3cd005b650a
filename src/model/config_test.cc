#include "model/config.h"
#include "model/config_words.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/json.h"

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

TEST(Config, ShippedSizes) {
  const ModelConfig two = shipped("deepseek-moe-2b");
  EXPECT_EQ(two.num_moe_layers(), 9);
  EXPECT_NEAR(static_cast<double>(two.num_parameters()), 2.0e9, 0.1e9);  // as the paper prints
  EXPECT_NEAR(static_cast<double>(two.num_active_parameters()), 0.3e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(shipped("small").num_parameters()), 4.7e6, 0.2e6);
  EXPECT_LT(shipped("tiny").num_parameters(), 200'000);
}

TEST(Config, DefaultsOfThePublishedClass) {
  const ModelConfig config =
      parse(parse_json(R"({"model_type":"deepseek","vocab_size":10,"hidden_size":8,
    "num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":4})",
                       "t"));
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.aux_loss_alpha, 0.001);
  EXPECT_TRUE(config.seq_aux);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.moe_layer_freq, 1);
  EXPECT_EQ(config.first_k_dense_replace, 0);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.torch_dtype, DType::F32);
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_FALSE(config.bos_token_id.has_value());
}

// GigaChat-20B-A3B: grouped heads, explicit head_dim, large theta.
TEST(Config, GroupedHeadsWithExplicitHeadDim) {
  const ModelConfig config =
      parse(parse_json(R"({"model_type":"deepseek","architectures":["DeepseekForCausalLM"],
    "vocab_size":128256,"hidden_size":1792,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,
    "head_dim":128,"intermediate_size":14336,"moe_intermediate_size":1792,"n_routed_experts":64,"n_shared_experts":2,
    "num_experts_per_tok":6,"first_k_dense_replace":1,"rope_theta":1400000.0,"max_position_embeddings":131072,
    "dtype":"bfloat16","eos_token_id":[128001,128009],"rope_scaling":null})",
                       "t"));
  EXPECT_EQ(config.attention_shape().q_width(), 2048);
  EXPECT_EQ(config.attention_shape().kv.projected_width(), 2 * 1024);
  EXPECT_EQ(config.kv_bytes_per_token(DType::BF16), 2 * 28 * 1024 * 2);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{128001, 128009}));
  const Json saved = config.to_json();
  EXPECT_EQ(saved["head_dim"], 128);
  EXPECT_EQ(saved["model_type"], "deepseek");
  EXPECT_EQ(saved["torch_dtype"], "bfloat16");
  EXPECT_EQ(saved["eos_token_id"], Json::array({128001, 128009}));
  for (const auto& spec : expected_tensors(config)) {
    const bool is_o = spec.name.ends_with("o_proj.weight");
    EXPECT_TRUE(!is_o || spec.shape == Shape({1792, 2048})) << spec.name;
  }
}

TEST(Config, LayerKinds) {
  const ModelConfig config = parse(
      changed(small(), R"({"num_hidden_layers":9,"first_k_dense_replace":3,"moe_layer_freq":2})"));
  std::string kinds;
  for (int layer = 0; layer < 9; ++layer) kinds += config.is_moe_layer(layer) ? 'M' : 'd';
  EXPECT_EQ(kinds, "ddddMdMdM");
}

TEST(Config, RopeSpellings) {
  const auto rope = [](const char* patch) { return parse(changed(small(), patch)); };
  ModelConfig config = rope(R"({"rope_scaling":{"type":"linear","factor":4}})");
  EXPECT_EQ(config.rope_kind, RopeKind::linear);
  EXPECT_EQ(config.rope_factor, 4.0);
  config = rope(R"({"rope_scaling":{"rope_type":"dynamic","type":"dynamic","factor":2.5}})");
  EXPECT_EQ(config.rope_kind, RopeKind::dynamic);
  EXPECT_EQ(config.to_json()["rope_scaling"], Json({{"type", "dynamic"}, {"factor", 2.5}}));
  config = rope(R"({"rope_parameters":{"rope_type":"default","rope_theta":5e5}})");
  EXPECT_EQ(config.rope_kind, RopeKind::plain);
  EXPECT_EQ(config.rope_theta, 5e5);
  config = rope(
      R"({"rope_theta":7,"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":7.0}})");
  EXPECT_EQ(config.rope_kind, RopeKind::linear);
  EXPECT_EQ(config.rope_theta, 7.0);
  EXPECT_TRUE(rope("{}").to_json()["rope_scaling"].is_null());
}

TEST(Config, SavedAndReadBackIsTheSame) {
  const std::vector<Json> sources = {
      small(), changed(small(), R"({"n_routed_experts":null,"n_shared_experts":null,
               "num_experts_per_tok":null,"moe_intermediate_size":null,"tie_word_embeddings":true,"pad_token_id":3})"),
      changed(
          small(),
          R"({"model_type":"dsmoe","moe_layer_freq":2,"scoring_func":"sigmoid","topk_method":"noaux_tc","n_routed_experts":6,
               "n_group":3,"topk_group":2,"routed_scaling_factor":2.5,"norm_topk_prob":true,"eos_token_id":[1,2]})"),
      changed(small(),
              R"({"unknown":{"a":[1,2.5,"x"]},"use_cache":true,"transformers_version":"4.36.0",
               "pretraining_tp":1,"attention_dropout":0.0,"rms_norm_eps":1e-05,"rope_theta":1.4e6})")};
  for (const Json& source : sources) {
    const Json saved = parse(source).to_json();
    EXPECT_EQ(parse(saved).to_json().dump(2), saved.dump(2));
    const Json in_own_words = own_words(parse(saved));  // other types leave out what they fix
    for (const auto& [key, value] : source.items())
      EXPECT_EQ(in_own_words.value(key, Json("absent")), value) << key;
  }
}

TEST(Config, SavedAsDeepseekOnlyWithinTheReleasedOptions) {
  const Json plain =
      parse(changed(small(), R"({"model_type":"dsmoe","auto_map":{"AutoConfig":"x.Y"}})"))
          .to_json();
  EXPECT_EQ(plain["model_type"], "deepseek");
  EXPECT_EQ(plain["architectures"], Json::array({"DeepseekForCausalLM"}));
  EXPECT_FALSE(plain.contains("topk_method"));
  EXPECT_TRUE(plain.contains("auto_map"));
  for (const char* beyond :
       {R"({"scoring_func":"sigmoid"})", R"({"topk_method":"noaux_tc"})",
        R"({"routed_scaling_factor":2})",
        R"({"quantization_config":{"quant_method":"dsmoe","projections":"int8"}})",
        R"({"topk_method":"group_limited_greedy","n_group":5,"topk_group":4})"}) {
    Json json = changed(
        changed(small(), R"({"model_type":"dsmoe","auto_map":{"AutoConfig":"x.Y"}})"), beyond);
    const Json saved = parse(json).to_json();
    EXPECT_EQ(saved["model_type"], "dsmoe") << beyond;
    EXPECT_EQ(saved["architectures"], Json::array({"DsmoeForCausalLM"}));
    EXPECT_FALSE(saved.contains("auto_map"));
    json["model_type"] = "deepseek";
    EXPECT_THROW(parse(json), Error) << beyond;
  }
}

TEST(Config, QuantisedWeightsHaveScales) {
  ModelConfig config = parse(changed(
      small(),
      R"({"model_type":"dsmoe","quantization_config":{"quant_method":"dsmoe","projections":"int4","head":"int8","group_size":32}})"));
  EXPECT_EQ(config.quantization.projections, tensor::WeightCoding::int4);
  EXPECT_EQ(config.quantization.head, tensor::WeightCoding::int8);
  EXPECT_EQ(parse(config.to_json()).to_json(), config.to_json());
  const auto specs = expected_tensors(config);
  EXPECT_EQ(static_cast<int64_t>(specs.size()), config.num_tensors());
  const auto find = [&](const std::string& name) {
    for (const tensor::TensorSpec& spec : specs) {
      if (spec.name == name) return spec;
    }
    ADD_FAILURE() << name << " is missing";
    return tensor::TensorSpec{};
  };
  const int64_t hidden = config.hidden_size;
  const tensor::TensorSpec q = find("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(q.dtype, tensor::DType::U8);
  EXPECT_EQ(q.shape, (tensor::Shape{config.attention_shape().q_width(), (hidden + 1) / 2}));
  EXPECT_EQ(q.type_rule, tensor::TypeRule::exact);
  const tensor::TensorSpec scale = find("model.layers.0.self_attn.q_proj.weight_scale");
  EXPECT_EQ(scale.dtype, tensor::DType::BF16);
  EXPECT_EQ(scale.shape, (tensor::Shape{config.attention_shape().q_width(), (hidden + 31) / 32}));
  EXPECT_EQ(find("lm_head.weight").dtype, tensor::DType::I8);
  EXPECT_EQ(find("model.embed_tokens.weight").dtype, config.torch_dtype);
}

TEST(Config, ProgramsAreCheckedToo) {
  ModelConfig config = parse(small());
  EXPECT_NO_THROW(config.check("t"));
  config.num_experts_per_tok = 6;
  EXPECT_THROW(config.check("t"), Error);
  EXPECT_THROW(ModelConfig().check("t"), Error);
}

}  // namespace
}  // namespace dsmoe::model

// Types of models: what each reads, and what a model is written as.
#include "model/format.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_words.h"
#include "model/rope_table.h"

namespace dsmoe::model {
namespace {

constexpr const char* kSigmoid =
    R"({"model_type":"dsmoe","vocab_size":97,"hidden_size":40,"num_hidden_layers":3,
    "num_attention_heads":5,"num_key_value_heads":1,"intermediate_size":33,"moe_intermediate_size":7,
    "n_routed_experts":6,"n_shared_experts":1,"num_experts_per_tok":3,"first_k_dense_replace":1,
    "scoring_func":"sigmoid","topk_method":"noaux_tc","norm_topk_prob":true})";

ModelConfig sigmoid_with(const char* patch) {
  Json json = parse_json(kSigmoid, "sigmoid");
  json.merge_patch(parse_json(patch, "patch"));
  return parse_config(json.dump(), "t");
}

ModelConfig published(const std::string& name) {
  return read_config(std::filesystem::path(DSMOE_SOURCE_DIR) / "configs" / (name + ".json"));
}

// Numbers of parameters as their makers publish them, or by hand from the published sizes.
TEST(Format, PublishedModelsHaveTheirSizes) {
  EXPECT_EQ(published("deepseek-v2-lite").num_parameters(), 15'706'484'224);
  EXPECT_EQ(published("moonlight-16b-a3b").num_parameters(), 15'960'110'208);
  EXPECT_EQ(published("glm-4.7-flash").num_parameters(), 29'943'393'920);
  EXPECT_EQ(published("qwen3-30b-a3b").num_parameters(), 30'532'122'624);
}

// Latent attention keeps 512 + 64 numbers of a position. Panels hold the 512 twice; a layout by
// rows holds them once.
TEST(Format, LatentModelsKeepTheirLatent) {
  for (const char* name : {"deepseek-v2-lite", "moonlight-16b-a3b", "glm-4.7-flash"}) {
    const ModelConfig config = published(name);
    EXPECT_EQ(config.kv_bytes_per_token(tensor::DType::BF16), config.num_hidden_layers * 576 * 2)
        << name;
    EXPECT_EQ(config.format().model_type, config.read_as) << name;
  }
}

TEST(Format, ScoresOfYarnAreScaled) {
  const ModelConfig lite = published("deepseek-v2-lite");
  // m = 0.1 * 0.707 * ln 40 + 1, and 192 numbers of a query.
  EXPECT_NEAR(lite.attention_shape().scale(), 1.260803 * 1.260803 / std::sqrt(192.0), 1e-6);
  EXPECT_NEAR(published("moonlight-16b-a3b").attention_shape().scale(), 1 / std::sqrt(192.0), 1e-7);
}

TEST(Format, SigmoidModelsAreWrittenAsGlm4Moe) {
  const Json saved = sigmoid_with("{}").to_json();
  EXPECT_EQ(saved["model_type"], "glm4_moe");
  EXPECT_EQ(saved["architectures"], Json::array({"Glm4MoeForCausalLM"}));
  EXPECT_EQ(saved["partial_rotary_factor"], 1.0);
  EXPECT_EQ(saved["use_qk_norm"], false);
  EXPECT_FALSE(saved.contains("scoring_func"));
  EXPECT_EQ(own_words(parse_config(saved.dump(), "t")), own_words(sigmoid_with("{}")));
  // What the type cannot say stays ours.
  for (const char* patch :
       {R"({"moe_layer_freq":2})", R"({"attention_bias":true})", R"({"n_shared_experts":0})",
        R"({"num_experts_per_tok":1})", R"({"n_routed_experts":1,"num_experts_per_tok":1})",
        R"({"topk_method":"greedy"})", R"({"scoring_func":"softmax"})",
        R"({"quantization_config":{"quant_method":"dsmoe","projections":"int8"}})"}) {
    EXPECT_EQ(sigmoid_with(patch).model_type(), "dsmoe") << patch;
  }
  EXPECT_EQ(sigmoid_with(R"({"num_experts_per_tok":1,"norm_topk_prob":false})").model_type(),
            "glm4_moe");
}

// A run is known by its configuration, whatever type its files are of: as it was before there were
// other types.
TEST(Format, OwnWordsAreThoseOfTheFirstTypes) {
  EXPECT_EQ(own_words(sigmoid_with("{}"))["model_type"], "dsmoe");
  EXPECT_FALSE(own_words(sigmoid_with("{}")).contains("use_qk_norm"));
  Json released = parse_json(kSigmoid, "sigmoid");
  released["scoring_func"] = "softmax";
  released["topk_method"] = "greedy";
  EXPECT_EQ(own_words(parse_config(released.dump(), "t"))["model_type"], "deepseek");
}

TEST(Format, EveryTypeReadsWhatItWrites) {
  int written = 0;
  for (const char* name :
       {"qwen3_moe_1", "qwen3_moe_3", "qwen3_moe_4", "qwen3_moe_6", "qwen2_moe_4", "glm4_moe_2",
        "glm4_moe_6", "deepseek_v2_2", "deepseek_v2_4", "deepseek_v3_2", "deepseek_v3_4",
        "glm4_moe_lite_3", "glm4_moe_lite_5"}) {
    const ModelConfig config =
        read_config(std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens" / name);
    const ModelConfig again = parse_config(config.to_json().dump(), name);
    EXPECT_EQ(own_words(again), own_words(config)) << name;
    EXPECT_EQ(again.num_parameters(), config.num_parameters()) << name;
    // qwen2_moe names tensors in its own way, and is written as dsmoe.
    const bool keeps = config.file_names.data() == kDeepseekNames.data();
    EXPECT_EQ(config.model_type(), keeps ? config.read_as : "dsmoe") << name;
    written += keeps ? 1 : 0;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      EXPECT_EQ(again.is_moe_layer(layer), config.is_moe_layer(layer)) << name;
    ModelConfig other = config;  // the control
    other.norm_topk_prob = !config.norm_topk_prob;
    EXPECT_NE(own_words(other), own_words(config)) << name;
  }
  EXPECT_EQ(written, 12);
}

}  // namespace
}  // namespace dsmoe::model

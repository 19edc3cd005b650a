// config.json files that break one rule each.
#include "model/config.h"

#include <gtest/gtest.h>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "refusal.h"

namespace dsmoe::malformed {
namespace {

constexpr const char* kGood =
    R"({"model_type":"dsmoe","vocab_size":97,"hidden_size":40,"num_hidden_layers":3,
  "num_attention_heads":5,"num_key_value_heads":1,"intermediate_size":33,"moe_intermediate_size":7,
  "n_routed_experts":6,"n_shared_experts":1,"num_experts_per_tok":3,"first_k_dense_replace":1})";

struct Case {
  const char* name;
  const char* patch;  // merged into kGood; null removes a key
  const char* fault;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

void read(const std::filesystem::path& path) { model::read_config(path); }

void expect_text_refused(const std::string& text, const std::string& fault) {
  const ScratchFolder scratch;
  atomic_write_file(scratch / "config.json", text);
  expect_refused([&] { read(scratch / "config.json"); }, text.size(), fault);
}

const Case kCases[] = {
    {"NoModelType", R"({"model_type":null})",
     "config.json: model_type is missing; \"deepseek\", \"glm4_moe\", \"qwen3_moe\", "
     "\"qwen2_moe\", \"deepseek_v2\", \"deepseek_v3\", \"glm4_moe_lite\" and \"dsmoe\" are "
     "supported"},
    {"OtherModelType", R"({"model_type":"deepseek_v4"})",
     "\"glm4_moe_lite\" or \"dsmoe\", other architectures are not supported, found "
     "\"deepseek_v4\""},
    {"ModelTypeNumber", R"({"model_type":3})", "model_type must be a string, found 3"},
    {"OtherArchitecture", R"({"architectures":["LlamaForCausalLM"]})",
     "architectures must be [\"DsmoeForCausalLM\"] for model_type dsmoe, found "
     "[\"LlamaForCausalLM\"]"},
    {"NoVocab", R"({"vocab_size":null})", "vocab_size is missing; it must be an integer"},
    {"VocabZero", R"({"vocab_size":0})",
     "vocab_size must be an integer from 1 to 8388608, found 0"},
    {"VocabTooLargeToDrawFrom", R"({"vocab_size":8388609})",
     "vocab_size must be an integer from 1 to 8388608, found 8388609"},
    {"VocabHuge", R"({"vocab_size":9223372036854775807})",
     "vocab_size must be an integer from 1 to 8388608"},
    {"VocabBeyond64Bits", R"({"vocab_size":18446744073709551615})",
     "vocab_size must be an integer, found 18446744073709551615"},
    {"HiddenString", R"({"hidden_size":"40"})", "hidden_size must be an integer, found \"40\""},
    {"HiddenFraction", R"({"hidden_size":40.5})", "hidden_size must be an integer, found 40.5"},
    {"HiddenBool", R"({"hidden_size":true})", "hidden_size must be an integer, found true"},
    {"HiddenNegative", R"({"hidden_size":-40})",
     "hidden_size must be an integer from 1 to 131072, found -40"},
    {"LayersZero", R"({"num_hidden_layers":0})",
     "num_hidden_layers must be an integer from 1 to 1024, found 0"},
    {"LayersHuge", R"({"num_hidden_layers":1000000})",
     "num_hidden_layers must be an integer from 1 to 1024"},
    {"HeadsZero", R"({"num_attention_heads":0})",
     "hidden_size must be a multiple of num_attention_heads (0), found 40"},
    {"HeadsDoNotDivide", R"({"num_attention_heads":6})",
     "hidden_size must be a multiple of num_attention_heads (6), found 40; give head_dim if this "
     "is meant"},
    {"KvHeadsDoNotDivide", R"({"num_key_value_heads":2})",
     "num_key_value_heads must be a divisor of num_attention_heads (5), found 2"},
    {"KvHeadsAboveHeads", R"({"num_key_value_heads":10})",
     "num_key_value_heads must be an integer from 1 to 5, found 10"},
    {"HeadDimOdd", R"({"head_dim":7})", "head_dim must be even"},
    {"HeadDimOddByDivision", R"({"hidden_size":35})", "head_dim must be even"},
    {"HeadDimHuge", R"({"head_dim":1073741824})", "head_dim must be an integer from 2 to 1024"},
    {"DenseWidthMissing", R"({"intermediate_size":null})",
     "intermediate_size must be an integer from 1 to 1048576, found 0"},
    {"DenseWidthNegative", R"({"intermediate_size":-1})",
     "intermediate_size must be an integer from 1"},
    {"PositionsZero", R"({"max_position_embeddings":0})",
     "max_position_embeddings must be an integer from 1"},
    {"EpsZero", R"({"rms_norm_eps":0})", "rms_norm_eps must be a number from 1e-30 to 1"},
    {"EpsString", R"({"rms_norm_eps":"1e-6"})", "rms_norm_eps must be a number, found \"1e-6\""},
    {"BiasNumber", R"({"attention_bias":1})", "attention_bias must be true or false, found 1"},
    {"TieString", R"({"tie_word_embeddings":"no"})",
     "tie_word_embeddings must be true or false, found \"no\""},
    {"InitNegative", R"({"initializer_range":-0.1})",
     "initializer_range must be a number from 0 to 10"},
    {"DtypeUnknown", R"({"torch_dtype":"float8"})",
     "torch_dtype must be one of \"float32\", \"bfloat16\", \"float16\", found \"float8\""},
    {"DtypesDisagree", R"({"torch_dtype":"float32","dtype":"bfloat16"})",
     "torch_dtype and dtype disagree"},
    {"Activation", R"({"hidden_act":"gelu"})", "hidden_act must be \"silu\", found \"gelu\""},
    {"ThetaZero", R"({"rope_theta":0})", "rope_theta must be a number from 1 to"},
    {"RopeKind", R"({"rope_scaling":{"type":"longrope","factor":4}})",
     "rope_scaling.type must be one of \"default\", \"linear\", \"dynamic\", \"yarn\", found "
     "\"longrope\""},
    {"YarnBeta", R"({"rope_scaling":{"type":"yarn","factor":4,"beta_fast":0}})",
     "rope_scaling.beta_fast must be a number from"},
    {"YarnHalfMscale", R"({"rope_scaling":{"type":"yarn","factor":4,"mscale":0.7}})",
     "rope_scaling.mscale must be given with mscale_all_dim"},
    {"YarnUnknownKey", R"({"rope_scaling":{"type":"yarn","factor":4,"short_factor":[1]}})",
     "rope_scaling.short_factor must be absent, it is not supported, found [1]"},
    {"RopeWithoutKind", R"({"rope_scaling":{"factor":4}})", "rope_scaling.type must be one of"},
    {"RopeWithoutFactor", R"({"rope_scaling":{"type":"linear"}})",
     "rope_scaling.factor must be a number, found nothing"},
    {"RopeFactorSmall", R"({"rope_scaling":{"type":"linear","factor":0.5}})",
     "rope_scaling.factor must be a number from 1 to"},
    {"RopeKindsDisagree", R"({"rope_scaling":{"type":"linear","rope_type":"dynamic","factor":2}})",
     "rope_scaling.type and rope_scaling.rope_type disagree"},
    {"RopeUnknownKey", R"({"rope_scaling":{"type":"linear","factor":2,"beta_fast":32}})",
     "rope_scaling.beta_fast must be absent, it is not supported, found 32"},
    {"RopeNotObject", R"({"rope_scaling":"linear"})",
     "rope_scaling must be an object, found \"linear\""},
    {"RopeTwice",
     R"({"rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"default"}})",
     "rope_scaling and rope_parameters are both given"},
    {"ThetaTwice", R"({"rope_theta":1e4,"rope_parameters":{"rope_theta":1e5}})",
     "rope_theta and rope_parameters.rope_theta disagree"},
    {"DynamicWithTwo", R"({"head_dim":2,"rope_scaling":{"type":"dynamic","factor":2}})",
     "head_dim must be at least 4 with dynamic rope_scaling"},
    {"ExpertsZero", R"({"n_routed_experts":0})",
     "n_routed_experts must be at least 1, or null for a dense model, found 0"},
    {"ExpertsHuge", R"({"n_routed_experts":1000000})",
     "n_routed_experts must be an integer from 0 to 8192"},
    {"SharedNegative", R"({"n_shared_experts":-1})",
     "n_shared_experts must be an integer from 0 to 256, found -1"},
    {"TopKMissing", R"({"num_experts_per_tok":null})",
     "num_experts_per_tok must be an integer from 1 to 6, found 0"},
    {"TopKAboveTheKernels", R"({"n_routed_experts":2000,"num_experts_per_tok":1025})",
     "num_experts_per_tok must be an integer from 1 to 1024, found 1025"},
    {"TopKAboveExperts", R"({"num_experts_per_tok":7})",
     "num_experts_per_tok must be an integer from 1 to 6, found 7"},
    {"ExpertWidthMissing", R"({"moe_intermediate_size":null})",
     "moe_intermediate_size must be an integer from 1"},
    {"LayerFreqZero", R"({"moe_layer_freq":0})",
     "moe_layer_freq must be an integer from 1 to 1024, found 0"},
    {"LayerFreqList", R"({"moe_layer_freq":[0,1,1]})",
     "moe_layer_freq must be an integer, found [0,1,1]"},
    {"FirstDenseNegative", R"({"first_k_dense_replace":-1})",
     "first_k_dense_replace must be an integer from 0"},
    {"NormString", R"({"norm_topk_prob":"true"})", "norm_topk_prob must be true or false"},
    {"Scoring", R"({"scoring_func":"tanh"})",
     "scoring_func must be one of \"softmax\", \"sigmoid\", found \"tanh\""},
    {"Method", R"({"topk_method":"random"})",
     "topk_method must be one of \"greedy\", \"group_limited_greedy\", \"noaux_tc\", found "
     "\"random\""},
    {"GroupsWithGreedy", R"({"n_group":2})", "n_group must be 1 with topk_method \"greedy\""},
    {"GroupsDoNotDivide", R"({"topk_method":"noaux_tc","n_group":4,"topk_group":1})",
     "n_group must be a divisor of n_routed_experts (6), found 4"},
    {"GroupsTooSmall", R"({"topk_method":"noaux_tc","n_group":6,"topk_group":6})",
     "n_group must be small enough for two experts in each group"},
    {"TopGroupAboveGroups", R"({"topk_method":"noaux_tc","n_group":2,"topk_group":3})",
     "topk_group must be an integer from 1 to 2, found 3"},
    {"TopKAboveGroups", R"({"topk_method":"noaux_tc","n_group":3,"topk_group":1})",
     "num_experts_per_tok must be at most the 2 experts of topk_group groups, found 3"},
    {"ScalingZero", R"({"routed_scaling_factor":0})",
     "routed_scaling_factor must be a number from"},
    {"SigmoidInDeepseek", R"({"model_type":"deepseek","scoring_func":"sigmoid"})",
     "anything else needs model_type \"dsmoe\""},
    {"AlphaNegative", R"({"aux_loss_alpha":-1})", "aux_loss_alpha must be a number from 0"},
    {"SeqAuxNumber", R"({"seq_aux":0})", "seq_aux must be true or false, found 0"},
    {"BosBeyondVocab", R"({"bos_token_id":97})",
     "bos_token_id must be an id below vocab_size (97), or null for none, found 97"},
    {"EosNegative", R"({"eos_token_id":[1,-1]})",
     "eos_token_id must be an id below vocab_size (97)"},
    {"EosString", R"({"eos_token_id":["</s>"]})",
     "eos_token_id must be an integer, found \"</s>\""},
    {"PadNegative", R"({"pad_token_id":-1})",
     "pad_token_id must be an id below vocab_size (97), or null"},
    {"TensorParallel", R"({"pretraining_tp":2})",
     "pretraining_tp must be 1, anything else is not supported, found 2"},
    {"Dropout", R"({"attention_dropout":0.1})",
     "attention_dropout must be 0, anything else is not supported, found 0.1"},
    {"MlpBias", R"({"mlp_bias":true})", "mlp_bias must be false"},
    {"SlidingWindow", R"({"sliding_window":4096})", "sliding_window must be null"},
    {"LatentWithoutSizes", R"({"kv_lora_rank":512})",
     "qk_nope_head_dim is missing; it must be an integer"},
    {"LatentOddRope",
     R"({"kv_lora_rank":8,"num_key_value_heads":5,"qk_nope_head_dim":4,"qk_rope_head_dim":3,"v_head_dim":4})",
     "qk_rope_head_dim must be even"},
    {"LatentHuge",
     R"({"kv_lora_rank":9223372036854775807,"num_key_value_heads":5,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":4})",
     "kv_lora_rank must be an integer from 1 to 131072"},
    {"LatentHeadsOverflow",
     R"({"kv_lora_rank":8,"num_key_value_heads":5,"qk_nope_head_dim":9223372036854775807,"qk_rope_head_dim":4,"v_head_dim":4})",
     "qk_nope_head_dim must be an integer from 1 to 1024"},
    {"LatentKvHeads",
     R"({"kv_lora_rank":8,"num_key_value_heads":1,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":4})",
     "num_key_value_heads must be 5, which follows from the other sizes, found 1"},
    {"LatentHeadDim",
     R"({"kv_lora_rank":8,"num_key_value_heads":5,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":4,"head_dim":6})",
     "head_dim must be 4, which follows from the other sizes, found 6"},
    {"LatentBias",
     R"({"kv_lora_rank":8,"num_key_value_heads":5,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":4,"attention_bias":true})",
     "kv_lora_rank must be null where attention_bias"},
    {"LatentInDeepseek", R"({"model_type":"deepseek","kv_lora_rank":512})",
     "kv_lora_rank must be null in model_type deepseek, found 512"},
    {"NormOfHeadsInDeepseek", R"({"model_type":"deepseek","use_qk_norm":true})",
     "use_qk_norm must be false in model_type deepseek, found true"},
    {"PartialRotationOdd", R"({"partial_rotary_factor":0.4})",
     "partial_rotary_factor must be a part of head_dim (8) that is even and at least 2"},
    {"PartialRotationAboveOne", R"({"partial_rotary_factor":1.5})",
     "partial_rotary_factor must be a number from 0 to 1"},
    {"RotationsDisagree",
     R"({"partial_rotary_factor":0.5,"rope_parameters":{"rope_type":"default","partial_rotary_factor":1.0}})",
     "rope_parameters.partial_rotary_factor and partial_rotary_factor disagree"},
    {"SlidingLayers", R"({"layer_types":["full_attention","sliding_attention"]})",
     "layer_types must be \"full_attention\" for every layer, found \"sliding_attention\""},
    {"DenseLayerBeyond", R"({"mlp_only_layers":[0,99]})",
     "mlp_only_layers must be layers below num_hidden_layers"},
    {"LayerTypes", R"({"mlp_layer_types":["dense"]})",
     "mlp_layer_types must be a list of \"dense\" or \"sparse\" for each layer"},
    {"SharedGateWithoutShared", R"({"n_shared_experts":0,"shared_expert_gate":true})",
     "n_shared_experts must be at least 1 where shared experts have a width or a gate"},
    {"SigmoidInQwen",
     R"({"model_type":"qwen3_moe","n_shared_experts":null,"first_k_dense_replace":null,"scoring_func":"sigmoid"})",
     "scoring_func must be \"softmax\" in model_type qwen3_moe, found \"sigmoid\""},
    {"ExpertsSpeltTwice", R"({"model_type":"qwen3_moe","num_experts":6,"num_local_experts":5})",
     "disagree; keep one of them"},
    {"QuantisedQwen",
     R"({"model_type":"qwen3_moe","n_shared_experts":null,"first_k_dense_replace":null,"norm_topk_prob":true,"quantization_config":{"quant_method":"dsmoe","projections":"int8"}})",
     "quant_method \"dsmoe\" needs model_type \"dsmoe\""},
    {"Gptq", R"({"quantization_config":{"quant_method":"gptq","bits":4}})",
     "quantization_config.quant_method must be \"dsmoe\", other quantised weights are not "
     "supported, found \"gptq\""},
    {"QuantWithoutMethod", R"({"quantization_config":{"bits":4}})",
     "quant_method must be \"dsmoe\", other quantised weights are not supported, found nothing"},
    {"QuantWithoutProjections", R"({"quantization_config":{"quant_method":"dsmoe"}})",
     "quantization_config.projections must be one of \"int8\", \"int4\", found nothing"},
    {"QuantInt3", R"({"quantization_config":{"quant_method":"dsmoe","projections":"int3"}})",
     "quantization_config.projections must be one of \"int8\", \"int4\", found \"int3\""},
    {"QuantGroups",
     R"({"quantization_config":{"quant_method":"dsmoe","projections":"int8","group_size":64}})",
     "quantization_config.group_size must be 32, found 64"},
    {"QuantTiedHead",
     R"({"tie_word_embeddings":true,"quantization_config":{"quant_method":"dsmoe","projections":"int8","head":"int8"}})",
     "quantization_config.head must be absent"},
    {"QuantUnknownKey",
     R"({"quantization_config":{"quant_method":"dsmoe","projections":"int8","zero_point":1}})",
     "quantization_config.zero_point must be absent, it is not supported, found 1"},
    {"QuantString", R"({"quantization_config":"int8"})", "quantization_config must be an object"},
    {"TooManyTensors", R"({"num_hidden_layers":1024,"n_routed_experts":8192})",
     "num_hidden_layers and n_routed_experts must be together at most 131072 tensors"},
    {"TooManyParameters",
     R"({"num_hidden_layers":1000,"n_routed_experts":40,"moe_intermediate_size":1048576,"hidden_size":131072,"num_attention_heads":1024,"num_key_value_heads":1024})",
     "the number of parameters must be at most"},
};

class MalformedConfig : public testing::TestWithParam<Case> {};

TEST_P(MalformedConfig, IsRefused) {
  Json json = parse_json(kGood, "good");
  json.merge_patch(parse_json(GetParam().patch, "patch"));
  expect_text_refused(json.dump(), GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedConfig, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

TEST(MalformedConfigText, IsRefused) {
  EXPECT_NO_THROW(model::parse_config(kGood, "good"));
  expect_text_refused("", "config.json: not valid JSON at byte");
  expect_text_refused("[]", "config.json: expected a JSON object, found []");
  expect_text_refused("null", "expected a JSON object, found null");
  expect_text_refused("{\"model_type\":\"deep", "not valid JSON");
  expect_text_refused("{\"model_type\":\"dsmoe\",\"model_type\":\"dsmoe\"}",
                      "the key \"model_type\" appears twice");
  expect_text_refused("{\"model_type\":\"\xff\"}", "not valid JSON");
  expect_text_refused("{\"vocab_size\":NaN}", "not valid JSON");
  expect_text_refused("{\"rope_theta\":1e999}", "not valid JSON");
  expect_text_refused("\xef\xbb\xbf[]", "expected a JSON object");
  expect_text_refused(std::string(100'000, '['), "nested deeper than 64 levels");
  expect_text_refused(std::string(2'000'000, ' '), "2000000 bytes, at most 1048576");
}

// Long texts must neither take memory nor fill the screen.
TEST(MalformedConfigText, LongTextIsRefusedShortly) {
  const auto repeat = [](const std::string& piece, std::size_t bytes) {
    std::string text;
    while (text.size() + piece.size() < bytes) text += piece;
    return text;
  };
  const std::string name(1'000'000, 'n');
  expect_text_refused("{\"" + name, "not valid JSON");
  expect_text_refused(
      "{\"" + name.substr(0, 500'000) + "\":1,\"" + name.substr(0, 500'000) + "\":1}",
      "appears twice");
  expect_text_refused("{\"model_type\":\"" + name + "\"}", "model_type must be");
  expect_text_refused("{\"x\":[" + repeat("{},", 1'000'000) + "0]}", "model_type is missing");
  expect_text_refused("{\"x\":[" + repeat("[],", 1'000'000) + "0]}", "model_type is missing");
  expect_text_refused("{\"model_type\":[" + repeat("0,", 1'000'000) + "0]}",
                      "model_type must be a string, found [0,0");
  expect_text_refused("{\"model_type\":" + repeat("9", 1'000'000) + "}", "not valid JSON");
}

}  // namespace
}  // namespace dsmoe::malformed

// Models through GGUF files: the same bits there and back, and what the format cannot say is
// refused.
#include <gtest/gtest.h>

#include <cstring>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "infer/convert.h"
#include "model/file_layout.h"
#include "model/gguf_format.h"
#include "model/initialise.h"
#include "store/folder_writer.h"
#include "store/gguf/gguf_file.h"
#include "store/gguf/gguf_writer.h"
#include "store/hf_folder.h"
#include "support/golden.h"
#include "support/manners.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
namespace gguf = store::gguf;
using gguf::TensorType;
using kernels::DType;

class GgufModel : public ::testing::Test {
 protected:
  void to_gguf(const fs::path& source, TensorType type = TensorType::F32) {
    infer::write_gguf(context_, source, file(), {.type = type}, [](int64_t) {});
  }
  void to_folder(std::optional<DType> type = {}) {
    infer::write_folder(context_, file(), folder(), {.type = type}, [](int64_t) {});
  }
  fs::path file() const { return scratch_ / "model.gguf"; }
  fs::path folder() const { return scratch_ / "folder"; }

  std::vector<float> logits(const fs::path& path, std::optional<DType> operand = {},
                            infer::PackedCache cache = infer::PackedCache::none) const {
    const auto model = infer::load_model(context_, path, {.operand = operand, .cache = cache});
    std::vector<Tokens> prompts = random_prompts(model->config.vocab_size);
    prompts.resize(3);
    return all_logits(context_, *model, prompts, {});
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return !a.empty() && a.size() == b.size() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  // A model whose rows are whole blocks, with random weights.
  fs::path wide_model(int64_t width) const {
    const fs::path path = scratch_ / "wide";
    model::ModelConfig config = model::parse_config(
        R"({"model_type": "deepseek", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 96, "moe_intermediate_size": )" +
            std::to_string(width) + R"(, "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "first_k_dense_replace": 1, "norm_topk_prob": true})",
        "wide");
    store::FolderWriter writer(path, model::written_tensors(config));
    writer.add_file("config.json", config.to_json().dump());
    model::InitialWeights weights(config, 7);
    for (const model::Parameter& parameter : model::inventory(config).parameters) {
      writer.write(parameter.name, weights.tensor(parameter).elements);
    }
    writer.commit();
    return path;
  }

  ThreadPool pool_{2};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  ScratchFolder scratch_;
};

// Absent and null are the same.
Json given(const std::string& extra) {
  Json json = Json::parse(extra);
  for (auto at = json.begin(); at != json.end();) at = at->is_null() ? json.erase(at) : ++at;
  return json;
}

class GgufGolden : public GgufModel, public ::testing::WithParamInterface<const char*> {};

// Every golden that an architecture says: logits from the file are those of the folder, and the
// folder made from the file holds its numbers under its configuration.
TEST_P(GgufGolden, ThereAndBack) {
  const fs::path golden = goldens_folder() / GetParam();
  const model::ModelConfig config = model::read_config(golden);
  to_gguf(golden, config.torch_dtype == DType::F32 ? TensorType::F32 : TensorType::BF16);
  const std::vector<float> expected = logits(golden);
  EXPECT_TRUE(same(logits(file()), expected));

  to_folder();
  EXPECT_TRUE(same(logits(folder()), expected));
  const store::HfFolder before = store::HfFolder::open(golden);
  const store::HfFolder after = store::HfFolder::open(folder());
  for (const std::string_view name : before.names()) {
    const store::TensorEntry* entry = after.find(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->shape, before.at(name).shape) << name;
    if (entry->dtype != before.at(name).dtype) continue;
    EXPECT_TRUE(std::ranges::equal(after.bytes(name), before.bytes(name))) << name;
  }
  model::ModelConfig back = model::read_config(folder());
  EXPECT_EQ(back.topk_method, config.topk_method);
  EXPECT_EQ(back.aux_loss_alpha, config.aux_loss_alpha);
  EXPECT_EQ(back.rms_norm_eps, config.rms_norm_eps);
  EXPECT_EQ(back.eos_token_ids, config.eos_token_ids);
  EXPECT_EQ(given(back.extra), given(config.extra));

  // Negative control: one byte of a weight is another model.
  std::string bytes = read_small_file(file(), std::size_t{1} << 24);
  const auto opened = gguf::File::open(file());
  bytes[opened.find_tensor("blk.0.attn_q.weight")->offset + 2] ^= 0x40;
  atomic_write_file(scratch_ / "other.gguf", bytes);
  EXPECT_FALSE(same(logits(scratch_ / "other.gguf"), expected));
}
INSTANTIATE_TEST_SUITE_P(Goldens, GgufGolden,
                         ::testing::Values("released", "released_bf16", "gqa", "rope_linear",
                                           "seven_heads", "tied_bf16", "ties", "sigmoid",
                                           "softmax_bias", "v2_greedy_scaled", "v3", "v3_bf16",
                                           "v3_no_norm", "glm4_moe_0", "glm4_moe_1", "glm4_moe_2",
                                           "glm4_moe_3", "glm4_moe_4", "glm4_moe_5", "glm4_moe_6",
                                           "glm4_moe_7", "qwen3_moe_0", "qwen3_moe_1"));

struct Refused {
  const char* golden;
  const char* fault;
};
class GgufRefusal : public GgufModel, public ::testing::WithParamInterface<Refused> {};

TEST_P(GgufRefusal, NamesWhatCannotBeSaid) {
  try {
    to_gguf(goldens_folder() / GetParam().golden);
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().fault), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(file()));
}
INSTANTIATE_TEST_SUITE_P(
    Goldens, GgufRefusal,
    ::testing::Values(Refused{"dense", "a model without experts"},
                      Refused{"layer_freq", "dense layers behind layers of experts"},
                      Refused{"odd", "layers without shared experts, but for"},
                      Refused{"attention_bias_f16", "attention_bias on the output projection"},
                      Refused{"rope_dynamic", "rope_scaling other than linear"},
                      Refused{"v2_groups", "topk_method group_limited_greedy"},
                      Refused{"deepseek_v2_0", "latent attention"},
                      Refused{"qwen2_moe_0", "shared experts with a gate"},
                      Refused{"qwen3_moe_3", "dense layers behind layers of experts"}));

// In fp32 a file of blocks is the model of the numbers they stand for.
TEST_F(GgufModel, BlocksAreTheNumbersTheyStandFor) {
  const fs::path wide = wide_model(32);
  const std::vector<float> original = logits(wide, DType::F32);
  for (const TensorType type : {TensorType::Q8_0, TensorType::Q4_0}) {
    fs::remove_all(folder());
    to_gguf(wide, type);
    const std::vector<float> blocks = logits(file(), DType::F32);
    to_folder();
    EXPECT_EQ(model::read_config(folder()).torch_dtype, DType::F32);
    EXPECT_TRUE(same(logits(folder(), DType::F32), blocks)) << name_of(type);
    EXPECT_FALSE(same(original, blocks)) << name_of(type);
    EXPECT_EQ(model::read_config(file()).torch_dtype, DType::BF16);
    // As matrices are, tables and vectors are not.
    const auto opened = gguf::File::open(file());
    EXPECT_EQ(opened.find_tensor("blk.1.ffn_down_exps.weight")->type, type);
    EXPECT_EQ(opened.find_tensor("output.weight")->type, TensorType::Q8_0);
    EXPECT_EQ(opened.find_tensor("blk.1.ffn_gate_inp.weight")->type, TensorType::F32);
    EXPECT_EQ(opened.find_tensor("output_norm.weight")->type, TensorType::F32);
  }
}

TEST_F(GgufModel, RowsOfHalfABlockAreRefused) {
  const fs::path wide = wide_model(48);
  EXPECT_THROW(to_gguf(wide, TensorType::Q8_0), Error);
  EXPECT_NO_THROW(to_gguf(wide, TensorType::BF16));
}

TEST_F(GgufModel, APackedImageLiesBesideTheFile) {
  const fs::path golden = goldens_folder() / "v3_bf16";
  to_gguf(golden, TensorType::BF16);
  const std::vector<float> expected = logits(golden);
  const fs::path image = infer::packed_image_path(file(), DType::BF16);
  EXPECT_EQ(image.filename(), "model.gguf.packed-bf16.dsmoe");
  EXPECT_TRUE(same(logits(file(), {}, infer::PackedCache::beside_model), expected));
  ASSERT_TRUE(fs::exists(image));
  EXPECT_TRUE(same(logits(file(), {}, infer::PackedCache::beside_model), expected));
}

// A bias that chooses other experts may not be passed over.
TEST_F(GgufModel, ASelectionBiasIsNeverDropped) {
  to_gguf(goldens_folder() / "sigmoid");
  EXPECT_EQ(model::read_config(file()).topk_method, model::TopkMethod::greedy);
  std::string bytes = read_small_file(file(), std::size_t{1} << 24);
  const auto opened = gguf::File::open(file());
  const float bias = 3;
  std::memcpy(&bytes[opened.find_tensor("blk.1.exp_probs_b.bias")->offset], &bias, sizeof bias);
  atomic_write_file(scratch_ / "other.gguf", bytes);
  EXPECT_EQ(model::read_config(scratch_ / "other.gguf").topk_method, model::TopkMethod::noaux_tc);
  EXPECT_FALSE(same(logits(scratch_ / "other.gguf"), logits(file())));
}

// A file with a layer more, which predicts further tokens, is the model without it.
TEST_F(GgufModel, LayersThatPredictFurtherArePassedOver) {
  const fs::path golden = goldens_folder() / "glm4_moe_0";
  to_gguf(golden);
  const model::ModelConfig config = model::read_config(golden);
  model::GgufModel longer = model::gguf_model(config, "test");
  longer.config.num_hidden_layers += 1;
  const auto write = [&](const fs::path& path, int64_t further) {
    gguf::Metadata metadata;
    model::add_config(longer, config, metadata);
    metadata.integer("glm4moe.nextn_predict_layers", further);
    const auto opened = gguf::File::open(file());
    std::vector<gguf::TensorSpec> specs;
    for (const gguf::TensorEntry& entry : opened.tensors()) {
      specs.push_back({entry.name, entry.type, entry.shape});
    }
    const std::string extra = fmt::format("blk.{}.nextn.enorm.weight", config.num_hidden_layers);
    specs.push_back({extra, TensorType::F32, {config.hidden_size}});
    gguf::Writer writer(path, metadata, specs);
    for (const gguf::TensorEntry& entry : opened.tensors()) {
      writer.write(entry.name, 0, opened.bytes(entry));
    }
    const std::vector<float> ones(static_cast<std::size_t>(config.hidden_size), 1.0f);
    writer.write(extra, 0, std::as_bytes(std::span(ones)));
    writer.finish();
  };
  write(scratch_ / "longer.gguf", 1);
  EXPECT_TRUE(same(logits(scratch_ / "longer.gguf"), logits(golden)));
  // Negative control: as an ordinary layer it lacks its tensors.
  write(scratch_ / "wrong.gguf", 0);
  EXPECT_THROW(logits(scratch_ / "wrong.gguf"), Error);
}

TEST_F(GgufModel, NumbersBeyondTheTypeAreRefused) {
  const fs::path wide = wide_model(32);
  const fs::path weights = wide / "model.safetensors";
  std::string bytes = read_small_file(weights, std::size_t{1} << 24);
  const float large = 70000;
  const auto file_of_weights = store::SafetensorsFile::open(weights);
  std::memcpy(&bytes[file_of_weights.at("lm_head.weight").offset], &large, sizeof large);
  atomic_write_file(weights, bytes);
  try {
    to_gguf(wide, TensorType::F16);
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lm_head.weight[0, 0] is 70000; F16 holds"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(to_gguf(wide, TensorType::BF16));
}

}  // namespace
}  // namespace dsmoe::testing

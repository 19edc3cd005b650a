// Quantised models: written, loaded, and bit for bit the bf16 model of the numbers their integers
// stand for, in every tier, batch and thread count. Broken folders are refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/rng.h"
#include "base/scratch_folder.h"
#include "infer/measure/divergence.h"
#include "infer/quantise.h"
#include "store/folder_writer.h"
#include "store/hf_folder.h"
#include "support/golden.h"
#include "support/manners.h"
#include "tensor/quantised.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
using kernels::Context;
using tensor::Bf16;
using tensor::DType;
using tensor::TensorSpec;
using tensor::WeightCoding;

// One tensor of a folder as bytes, changeable.
struct Stored {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

std::vector<Stored> read_folder(const fs::path& path) {
  const store::HfFolder folder = store::HfFolder::open(path);
  std::vector<Stored> tensors;
  for (const std::string_view name : folder.names()) {
    const store::TensorEntry& entry = folder.at(name);
    const auto bytes = folder.bytes(name);
    Stored& stored = tensors.emplace_back();
    stored.spec.name = name;
    stored.spec.dtype = entry.dtype;
    stored.spec.shape = entry.shape;
    stored.bytes.assign(bytes.begin(), bytes.end());
  }
  return tensors;
}

void write_folder(const fs::path& path, const std::string& config,
                  const std::vector<Stored>& tensors) {
  std::vector<TensorSpec> specs;
  for (const Stored& tensor : tensors) specs.push_back(tensor.spec);
  store::FolderWriter writer(path, specs);
  writer.add_file("config.json", config);
  for (const Stored& tensor : tensors) writer.write(tensor.spec.name, tensor.bytes);
  writer.commit();
}

std::string config_text(const fs::path& folder) {
  return read_small_file(folder / "config.json", model::kMaxConfigBytes);
}

Stored* find(std::vector<Stored>& tensors, const std::string& name) {
  for (Stored& tensor : tensors) {
    if (tensor.spec.name == name) return &tensor;
  }
  return nullptr;
}

// The definition, element by element: a folder whose weights are bf16 numbers.
void write_dequantised(const fs::path& quantised, const fs::path& target) {
  model::ModelConfig config = model::read_config(quantised);
  std::vector<Stored> tensors = read_folder(quantised);
  model::ModelConfig plain = config;
  plain.quantization = {};
  std::vector<Stored> out;
  const model::Inventory coded = model::inventory(config), uncoded = model::inventory(plain);
  for (std::size_t p = 0; p < coded.parameters.size(); ++p) {
    const TensorSpec spec = model::stored_specs(plain, uncoded.parameters[p]).front();
    Stored& stored = *find(tensors, spec.name);
    const WeightCoding coding = coded.parameters[p].coding;
    if (coding == WeightCoding::plain) {
      out.push_back(stored);
      continue;
    }
    const Stored& scales = *find(tensors, spec.name + "_scale");
    const int64_t k_size = spec.shape[1];
    const int64_t groups = (k_size + 31) / 32;
    Stored numbers{{spec.name, DType::BF16, spec.shape}, {}};
    numbers.bytes.resize(static_cast<std::size_t>(spec.shape.num_elements()) * 2);
    for (int64_t i = 0; i < spec.shape.num_elements(); ++i) {
      const int64_t row = i / k_size;
      const int64_t k = i % k_size;
      int q = 0;
      if (coding == WeightCoding::int8) {
        q = static_cast<int8_t>(stored.bytes[static_cast<std::size_t>(i)]);
      } else {
        const int64_t byte = row * ((k_size + 1) / 2) + k / 2;
        q = static_cast<int>(stored.bytes[static_cast<std::size_t>(byte)]) >> (k % 2 * 4) & 15;
        if (q >= 8) q -= 16;
      }
      Bf16 scale{};
      std::memcpy(&scale, scales.bytes.data() + 2 * (row * groups + k / 32), 2);
      const Bf16 number = tensor::to_bf16(tensor::to_float(scale) * static_cast<float>(q));
      std::memcpy(numbers.bytes.data() + 2 * i, &number, 2);
    }
    out.push_back(numbers);
  }
  write_folder(target, plain.to_json().dump(), out);
}

struct Case {
  std::string model;
  WeightCoding coding;
};

class Quantised : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const infer::QuantiseOptions options{.quantization = {GetParam().coding, WeightCoding::int8}};
    infer::quantise_folder(
        context_, goldens_folder() / GetParam().model, folder(), options,
        [&](const infer::QuantisedTensor& tensor) { errors_.push_back(tensor); });
  }

  fs::path folder() const { return scratch_ / "quantised"; }

  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::vector<float> logits(const fs::path& path, const kernels::KernelTable& table,
                            const Manner& manner,
                            std::optional<DType> operand = std::nullopt) const {
    ThreadPool pool(manner.num_threads);
    const Context context{.table = &table, .pool = &pool};
    const auto model = infer::load_model(context, path, {.operand = operand});
    return all_logits(context, *model, random_prompts(model->config.vocab_size), manner);
  }

  ThreadPool pool_{2};
  Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  ScratchFolder scratch_;
  std::vector<infer::QuantisedTensor> errors_;
};

TEST_P(Quantised, EqualsTheModelOfItsNumbers) {
  const fs::path numbers = scratch_ / "numbers";
  write_dequantised(folder(), numbers);
  const std::vector<float> expected = logits(numbers, *context_.table, {});
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    if (candidate.table == nullptr || !candidate.declined.empty()) continue;
    EXPECT_TRUE(same(logits(folder(), *candidate.table, {.batch = 7}), expected)) << candidate.name;
  }
  EXPECT_TRUE(same(logits(folder(), *context_.table, {.num_threads = 2}), expected));
  EXPECT_TRUE(same(logits(folder(), *context_.table, {.batch = 7, .chunk = 5, .num_threads = 3}),
                   expected));
  EXPECT_TRUE(same(logits(folder(), *context_.table, {}, DType::F32),
                   logits(numbers, *context_.table, {}, DType::F32)));

  // Negative control: one integer off by one.
  std::vector<Stored> tensors = read_folder(folder());
  Stored& weight = *find(tensors, "model.layers.0.self_attn.o_proj.weight");
  weight.bytes[0] ^= std::byte{1};
  write_folder(scratch_ / "changed", config_text(folder()), tensors);
  EXPECT_FALSE(same(logits(scratch_ / "changed", *context_.table, {}), expected));
}

TEST_P(Quantised, KeepsIntegersInMemory) {
  const auto model = infer::load_model(context_, folder(), {});
  EXPECT_EQ(model->operand, DType::BF16);
  const model::BlockWeights& block = model->parameters.forward.blocks[0];
  EXPECT_EQ(block.attention.qkv.coding, GetParam().coding);
  EXPECT_EQ(block.attention.out.coding, GetParam().coding);
  EXPECT_EQ(block.ffn.shared.gate.coding, GetParam().coding);
  const WeightCoding head =
      model->config.tie_word_embeddings ? WeightCoding::plain : WeightCoding::int8;
  EXPECT_EQ(model->parameters.forward.head.coding, head);
}

TEST_P(Quantised, ReportsErrorsOfTheRightSize) {
  ASSERT_FALSE(errors_.empty());
  for (const infer::QuantisedTensor& tensor : errors_) {
    // A uniform step over the largest of 32 normal numbers, up to the next power of two for int8:
    // 0.8 % and 9 %, and room for odd shapes.
    const double most = tensor.coding == WeightCoding::int8 ? 0.011 : 0.115;
    EXPECT_GT(tensor.error, most / 100) << tensor.name;
    EXPECT_LT(tensor.error, most) << tensor.name;
  }
}

TEST_P(Quantised, DivergesWhereAModelFromItselfDoesNot) {
  const auto original = infer::load_model(context_, goldens_folder() / GetParam().model, {});
  const auto quantised = infer::load_model(context_, folder(), {});
  const std::vector<Tokens> prompts = random_prompts(original->config.vocab_size);
  std::vector<infer::ScoredDocument> documents;
  for (const Tokens& prompt : prompts) {
    if (prompt.size() > 1) documents.push_back({.tokens = prompt});
  }
  const infer::ReferenceLogits reference =
      infer::reference_logits(context_, *original, documents, std::size_t{1} << 30, nullptr);
  infer::Divergence self, divergence;
  infer::compare_with(context_, *original, reference, nullptr, self);
  EXPECT_EQ(self.kl, 0);
  EXPECT_EQ(self.nats, self.reference_nats);
  EXPECT_EQ(self.same_choice, self.num_targets);
  infer::compare_with(context_, *quantised, reference, nullptr, divergence);
  EXPECT_EQ(divergence.reference_nats, self.nats);
  EXPECT_GT(divergence.kl, 0);  // how much is a question for trained models: docs/results.md
  EXPECT_NE(divergence.nats, divergence.reference_nats);
}

// A window of a real vocabulary is larger than what is kept: its beginning is compared, not
// nothing.
TEST_P(Quantised, IsComparedOnTheBeginningThatFits) {
  const auto original = infer::load_model(context_, goldens_folder() / GetParam().model, {});
  const auto vocabulary = static_cast<std::size_t>(original->config.vocab_size);
  const Tokens tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<infer::ScoredDocument> documents = {{.tokens = tokens, .first_target = 2},
                                                        {.tokens = tokens}};
  for (const int64_t kept : {0, 1, 5, 6, 7, 13, 20}) {
    const infer::ReferenceLogits reference = infer::reference_logits(
        context_, *original, documents, static_cast<std::size_t>(kept) * vocabulary * sizeof(float),
        nullptr);
    infer::Divergence self;
    infer::compare_with(context_, *original, reference, nullptr, self);
    EXPECT_EQ(self.num_targets, std::min<int64_t>(kept, 6 + 7));
    EXPECT_EQ(self.kl, 0);
    EXPECT_EQ(self.nats, self.reference_nats);
  }
}

TEST_P(Quantised, CannotBeTrainedNorQuantisedAgain) {
  const auto message = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const std::string trained = message([&] {
    infer::load_model(context_, folder(), {.passes = moe::Passes::forward_and_backward});
  });
  EXPECT_NE(trained.find("a quantised model cannot be trained"), std::string::npos) << trained;
  const std::string again = message([&] {
    infer::quantise_folder(context_, folder(), scratch_ / "again", {},
                           [](const infer::QuantisedTensor&) {});
  });
  EXPECT_NE(again.find("already; quantise the model"), std::string::npos) << again;
}

INSTANTIATE_TEST_SUITE_P(
    Models, Quantised,
    ::testing::Values(Case{"released_bf16", WeightCoding::int8},
                      Case{"released_bf16", WeightCoding::int4}, Case{"odd", WeightCoding::int8},
                      Case{"odd", WeightCoding::int4}, Case{"tied_bf16", WeightCoding::int4},
                      Case{"attention_bias_f16", WeightCoding::int4},
                      Case{"deepseek_v3_1", WeightCoding::int8},
                      Case{"glm4_moe_lite_3", WeightCoding::int4},
                      Case{"qwen2_moe_0", WeightCoding::int4}),
    [](const auto& test) {
      return test.param.model + "_" + std::string(tensor::name_of(test.param.coding));
    });

// Each fault, and what the refusal must say.
struct Fault {
  std::string name;
  std::string expected;
  void (*spoil)(std::vector<Stored>& tensors);
};

const std::string kWeight = "model.layers.1.self_attn.q_proj.weight";

void set_scale(std::vector<Stored>& tensors, uint16_t bits) {
  std::memcpy(find(tensors, kWeight + "_scale")->bytes.data() + 2, &bits, 2);
}

class BrokenFolder : public ::testing::TestWithParam<Fault> {};

TEST_P(BrokenFolder, IsRefusedByName) {
  ThreadPool pool(1);
  const Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  const ScratchFolder scratch;
  infer::quantise_folder(context, goldens_folder() / "released_bf16", scratch / "good",
                         {.quantization = {WeightCoding::int4, WeightCoding::int8}},
                         [](const infer::QuantisedTensor&) {});
  std::vector<Stored> tensors = read_folder(scratch / "good");
  GetParam().spoil(tensors);
  write_folder(scratch / "bad", config_text(scratch / "good"), tensors);
  EXPECT_NO_THROW(infer::load_model(context, scratch / "good", {}));
  try {
    infer::load_model(context, scratch / "bad", {});
    ADD_FAILURE() << "a broken folder was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_NE(std::string(error.what()).find(GetParam().expected), std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, BrokenFolder,
    ::testing::Values(Fault{"MissingScale", kWeight + "_scale [",
                            [](std::vector<Stored>& tensors) {
                              std::erase_if(tensors, [](const Stored& one) {
                                return one.spec.name == kWeight + "_scale";
                              });
                            }},
                      Fault{"ScaleShape", kWeight + "_scale should be [",
                            [](std::vector<Stored>& tensors) {
                              Stored& scale = *find(tensors, kWeight + "_scale");
                              scale.spec.shape = {1, scale.spec.shape.num_elements()};
                            }},
                      Fault{"ScaleType", kWeight + "_scale should be BF16, the file has F16",
                            [](std::vector<Stored>& tensors) {
                              find(tensors, kWeight + "_scale")->spec.dtype = DType::F16;
                            }},
                      Fault{"IntegerType", kWeight + " should be U8, the file has I8",
                            [](std::vector<Stored>& tensors) {
                              find(tensors, kWeight)->spec.dtype = DType::I8;
                            }},
                      Fault{"ExtraScale", "\"model.norm.weight_scale\" [1] is extra",
                            [](std::vector<Stored>& tensors) {
                              tensors.push_back({{"model.norm.weight_scale", DType::BF16, {1}},
                                                 std::vector<std::byte>(2)});
                            }},
                      Fault{"NotANumber", "the scale of row 0, group 1 is nan",
                            [](std::vector<Stored>& tensors) { set_scale(tensors, 0x7fc0); }},
                      Fault{"Infinite", "the scale of row 0, group 1 is -inf",
                            [](std::vector<Stored>& tensors) { set_scale(tensors, 0xff80); }},
                      Fault{"SixSignificantBits", "at most five significant bits",
                            [](std::vector<Stored>& tensors) { set_scale(tensors, 0x3c04); }}),
    [](const auto& test) { return test.param.name; });

// Every scale within the search range beats none: the choice is the least of what it tries.
TEST(QuantiseRow, IsNoWorseThanFittingTheLargest) {
  const Rng rng{.seed = 5};
  for (const WeightCoding coding : {WeightCoding::int8, WeightCoding::int4}) {
    const float top = coding == WeightCoding::int8 ? 127 : 7;
    double chosen_total = 0, fitted_total = 0;
    for (uint64_t trial = 0; trial < 200; ++trial) {
      float w[40];
      for (uint64_t i = 0; i < 40; ++i) w[i] = rng.normal_f32(trial * 40 + i);
      std::byte coded[40];
      Bf16 scales[2];
      tensor::quantise_row(coding, w, 40, coded, scales);
      float largest[2] = {};
      for (int i = 0; i < 40; ++i) largest[i / 32] = std::max(largest[i / 32], std::fabs(w[i]));
      for (int i = 0; i < 40; ++i) {
        EXPECT_TRUE(tensor::is_valid_scale(coding, scales[i / 32]));
        const double kept = tensor::to_float(
            tensor::dequantise(scales[i / 32], tensor::coded_element(coding, coded, i)));
        const double scale = largest[i / 32] / top;
        const double fitted = std::nearbyint(w[i] / scale) * scale;
        chosen_total += (w[i] - kept) * (w[i] - kept);
        fitted_total += (w[i] - fitted) * (w[i] - fitted);
      }
    }
    // int8 pays for its powers of two: a step up to twice as long, 7/3 of the squares on average.
    EXPECT_LT(chosen_total, fitted_total * (coding == WeightCoding::int8 ? 2.6 : 0.95));
  }
}

TEST(QuantiseRow, ZerosAndTinyValuesAreZero) {
  const float w[33] = {0, -0.0f, 1e-40f, 1e-35f};
  std::byte coded[17];
  Bf16 scales[2];
  tensor::quantise_row(WeightCoding::int4, w, 33, coded, scales);
  for (const Bf16 scale : scales) EXPECT_EQ(scale.bits, 0);
  for (const std::byte byte : coded) EXPECT_EQ(byte, std::byte{0});
}

}  // namespace
}  // namespace dsmoe::testing

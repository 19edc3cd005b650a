// Models from packed images: the bits of the model that was packed, made again when they no longer
// fit, and never in the way.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/scratch_folder.h"
#include "base/sha256.h"
#include "infer/quantise.h"
#include "store/hf_folder.h"
#include "store/packed_image.h"
#include "support/golden.h"
#include "support/manners.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
using infer::PackedCache;
using kernels::DType;
using tensor::WeightCoding;

struct Case {
  std::string model;
  WeightCoding coding = WeightCoding::plain;
  std::optional<DType> operand = {};
};

class PackedModel : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().coding == WeightCoding::plain) {
      fs::copy(goldens_folder() / GetParam().model, folder(), fs::copy_options::recursive);
      return;
    }
    infer::quantise_folder(context_, goldens_folder() / GetParam().model, folder(),
                           {.quantization = {GetParam().coding, WeightCoding::int8}},
                           [](const infer::QuantisedTensor&) {});
  }

  fs::path folder() const { return scratch_ / "model"; }
  fs::path image() const {
    return infer::packed_image_path(
        folder(),
        GetParam().operand.value_or(infer::default_operand(model::read_config(folder()))));
  }
  std::vector<float> logits(PackedCache cache) const {
    const auto model =
        infer::load_model(context_, folder(), {.operand = GetParam().operand, .cache = cache});
    std::vector<Tokens> prompts = random_prompts(model->config.vocab_size);
    prompts.resize(3);
    return all_logits(context_, *model, prompts, {});
  }
  std::vector<float> plain() const { return logits(PackedCache::none); }
  std::vector<float> cached() const { return logits(PackedCache::beside_model); }

  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  std::string image_bytes() const {
    std::ifstream file(image(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ThreadPool pool_{2};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  ScratchFolder scratch_;
};

TEST_P(PackedModel, HasTheBitsOfTheModel) {
  const std::vector<float> expected = plain();
  EXPECT_FALSE(fs::exists(image()));
  EXPECT_TRUE(same(cached(), expected));  // packs and writes
  ASSERT_TRUE(fs::exists(image()));
  const auto written = fs::last_write_time(image());
  EXPECT_TRUE(same(cached(), expected));  // maps
  EXPECT_EQ(fs::last_write_time(image()), written);

  // Negative control: the image is what is used. One byte of the last block, the head.
  const store::PackedImage original = store::PackedImage::open(image());
  auto blocks = original.blocks();
  std::vector<std::byte> head(blocks.back().begin(), blocks.back().end());
  head[1] ^= std::byte{0x41};
  blocks.back() = head;
  store::write_packed_image(image(), original.header().identity, blocks);
  EXPECT_FALSE(same(cached(), expected));
}

TEST_P(PackedModel, IsPackedAgainWhenItDoesNotFit) {
  const std::vector<float> expected = plain();
  cached();
  const std::string good = image_bytes();
  const auto expect_renewed = [&](const char* what) {
    EXPECT_TRUE(same(cached(), expected)) << what;
    EXPECT_EQ(image_bytes(), good) << what;
  };
  const auto spoil = [&](const std::string& bytes) {
    std::ofstream(image(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  };
  spoil(good.substr(0, good.size() / 2));
  expect_renewed("half of it");
  spoil("");
  expect_renewed("nothing of it");
  std::string damaged = good;
  damaged[damaged.size() - 100] = static_cast<char>(damaged[damaged.size() - 100] ^ 1);
  spoil(damaged);
  expect_renewed("a bit of the weights");

  // An image whose blocks are not those of the model.
  const store::PackedImage image_now = store::PackedImage::open(image());
  auto blocks = image_now.blocks();
  blocks.pop_back();
  store::write_packed_image(image(), image_now.header().identity, blocks);
  expect_renewed("a block fewer");

  const fs::path weights = store::HfFolder::open(folder()).files().front();
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_TRUE(same(cached(), expected));
  EXPECT_NE(image_bytes(), good);  // names another time
}

TEST_P(PackedModel, IsDoneWithoutWhereItCannotBeWritten) {
  const std::vector<float> expected = plain();
  fs::create_directories(image() / "in the way");
  EXPECT_TRUE(same(cached(), expected));
  EXPECT_TRUE(fs::is_directory(image()));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder())) {
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << "left behind";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PackedModel,
                         ::testing::Values(Case{"released_bf16"},
                                           Case{"released_bf16", WeightCoding::int4},
                                           Case{"odd", WeightCoding::int8},
                                           Case{"v3_bf16", WeightCoding::plain, DType::F32},
                                           Case{"tied_bf16"}),
                         [](const auto& param_info) {
                           return fmt::format("{}_{}{}", param_info.param.model,
                                              tensor::name_of(param_info.param.coding),
                                              param_info.param.operand ? "_fp32" : "");
                         });

// Whoever changes these bytes raises kPackingVersion (infer/load_model.cc), or old images would be
// taken for new ones; then these hashes.
TEST(PackedBytes, AreThoseOfTheVersion) {
  ThreadPool pool(1);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  const ScratchFolder scratch;
  const auto hash_of = [&](const fs::path& folder) {
    const auto model = infer::load_model(context, folder, {});
    Sha256 hash;
    for (const auto& block : model->weights.blocks()) hash.update(block);
    return hash.finish();
  };
  EXPECT_EQ(hash_of(goldens_folder() / "released_bf16"),
            "fa0e38dd4073fcb425757b90d3af9e59bb596669a634abfaff83ba67fc51a28c");
  for (const auto& [coding, expected] :
       {std::pair{WeightCoding::int8,
                  "6f85e3ddb9b923ee55052435c7c03f9c8a95d96a46fae0d4fc4080278ec283b2"},
        std::pair{WeightCoding::int4,
                  "cf25162d2a3d47519fbc0f6817dce1824af415a4dbf4a3752a8cadacfa4bde96"}}) {
    const fs::path folder = scratch / std::string(tensor::name_of(coding));
    infer::quantise_folder(context, goldens_folder() / "released_bf16", folder,
                           {.quantization = {coding, WeightCoding::int8}},
                           [](const infer::QuantisedTensor&) {});
    EXPECT_EQ(hash_of(folder), expected);
  }
}

}  // namespace
}  // namespace dsmoe::testing

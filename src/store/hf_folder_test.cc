#include "store/hf_folder.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/failing_disk.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "store/folder_writer.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::TensorSpec;

const std::vector<TensorSpec> kSpecs = {{"model.b", DType::F32, {4, 2}},
                                        {"model.a", DType::BF16, {3}},
                                        {"lm_head", DType::F32, {2, 2}}};

// Byte i of a tensor is the first letter of its last name plus i.
std::string pattern(const TensorSpec& spec) {
  std::string bytes(num_bytes_of(spec), '\0');
  std::iota(bytes.begin(), bytes.end(), spec.name.back());
  return bytes;
}

void save(const fs::path& target, std::vector<TensorSpec> specs,
          uint64_t max_shard_bytes = kMaxShardBytes) {
  FolderWriter writer(target, specs, max_shard_bytes);
  writer.add_file("config.json", "{}");
  for (const TensorSpec& spec : specs) {
    const std::string bytes = pattern(spec);
    writer.write(spec.name, std::as_bytes(std::span(bytes)));
  }
  writer.commit();
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename()] = read_small_file(entry.path(), 1 << 20);
  }
  return files;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(HfFolder, OneFile) {
  const ScratchFolder scratch;
  save(scratch / "m", kSpecs);
  EXPECT_TRUE(fs::exists(scratch / "m/model.safetensors"));
  EXPECT_FALSE(fs::exists(scratch / "m/model.safetensors.index.json"));
  const HfFolder folder = HfFolder::open(scratch / "m");
  EXPECT_EQ(folder.names(), (std::vector<std::string_view>{"lm_head", "model.a", "model.b"}));
  folder.check(kSpecs);
}

TEST(HfFolder, ShardsHoldTheSameAsOneFile) {
  const ScratchFolder scratch;
  save(scratch / "m", kSpecs,
       30);  // 16 bytes of lm_head and 6 of a, then 32 of b, which is beyond the limit alone
  EXPECT_TRUE(fs::exists(scratch / "m/model-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(scratch / "m/model.safetensors"));
  const HfFolder folder = HfFolder::open(scratch / "m");
  folder.check(kSpecs);
  for (const TensorSpec& spec : kSpecs) {
    EXPECT_EQ(folder.at(spec.name).shape, spec.shape);
    const auto bytes = folder.bytes(spec.name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              pattern(spec));
    std::string copy(bytes.size(), '\0');
    folder.read(spec.name, std::as_writable_bytes(std::span(copy)));
    EXPECT_EQ(copy, pattern(spec));
    folder.release(spec.name);
  }
  EXPECT_EQ(contents(scratch / "m").at("model.safetensors.index.json"), R"({
  "metadata": {
    "total_size": 54
  },
  "weight_map": {
    "lm_head": "model-00001-of-00002.safetensors",
    "model.a": "model-00001-of-00002.safetensors",
    "model.b": "model-00002-of-00002.safetensors"
  }
}
)");
}

TEST(HfFolder, EqualWeightsGiveEqualBytes) {
  const ScratchFolder scratch;
  std::vector<TensorSpec> reversed(kSpecs.rbegin(), kSpecs.rend());
  for (const uint64_t limit : {uint64_t{30}, kMaxShardBytes}) {
    save(scratch / "a", kSpecs, limit);
    save(scratch / "b", reversed, limit);
    EXPECT_EQ(contents(scratch / "a"), contents(scratch / "b"));
    fs::remove_all(scratch / "a");
    fs::remove_all(scratch / "b");
  }
}

TEST(HfFolder, CheckNamesEveryDifference) {
  const ScratchFolder scratch;
  save(scratch / "m", {{"model.b", DType::F32, {4, 2}},
                       {"model.a", DType::I32, {3}},
                       {"old", DType::F32, {1}},
                       {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::F32, {2}}});
  const HfFolder folder = HfFolder::open(scratch / "m");
  EXPECT_EQ(refusal([&] {
              folder.check(std::vector<TensorSpec>{{"model.b", DType::F32, {2, 4}},
                                                   {"model.a", DType::F32, {3}},
                                                   {"lm_head", DType::F32, {2, 2}}});
            }),
            (scratch / "m").string() +
                ": the weights are not those of the configuration (1 missing, 1 extra, 2 of "
                "another shape or type): "
                "model.b should be [2, 4], the file has [4, 2]; model.a should be F32, F16 or "
                "BF16, the file has I32; "
                "lm_head [2, 2] is missing; \"old\" [1] is extra");
  std::vector<TensorSpec> many;
  for (int i = 0; i < 20; ++i) many.push_back({std::to_string(i), DType::F32, {1}});
  const std::string text = refusal([&] { folder.check(many); });
  EXPECT_NE(text.find("(20 missing, 3 extra, 0 of"), std::string::npos) << text;
  EXPECT_NE(text.find("; 7 [1] is missing; and 15 more"), std::string::npos) << text;
}

// A layer behind the last that has eh_proj is one of those; any other is an extra one.
TEST(HfFolder, PassesOverLayersThatPredictTokensFurtherAhead) {
  const ScratchFolder scratch;
  const TensorSpec last{"model.layers.0.w", DType::F32, {2}};
  const TensorSpec further{"model.layers.1.eh_proj.weight", DType::F32, {2}};
  const TensorSpec beside{"model.layers.1.shared_head.norm.weight", DType::F32, {2}};
  save(scratch / "mtp", {last, further, beside});
  const HfFolder folder = HfFolder::open(scratch / "mtp");
  EXPECT_NO_THROW(folder.check(std::vector<TensorSpec>{last}));
  const std::string known = refusal([&] { folder.check(std::vector<TensorSpec>{last, further}); });
  EXPECT_NE(known.find("shared_head.norm.weight\" [2] is extra"), std::string::npos) << known;
  save(scratch / "other", {last, beside});
  const std::string other =
      refusal([&] { HfFolder::open(scratch / "other").check(std::vector<TensorSpec>{last}); });
  EXPECT_NE(other.find("shared_head.norm.weight\" [2] is extra"), std::string::npos) << other;
}

// PyTorch writes such tensors for `n_shared_experts: 0`: they hold no number.
TEST(HfFolder, CheckPassesOverTensorsWithoutElements) {
  const ScratchFolder scratch;
  save(scratch / "m", {{"a", DType::F32, {2}},
                       {"shared.up", DType::F32, {0, 8}},
                       {"shared.down", DType::F32, {8, 0}}});
  const HfFolder folder = HfFolder::open(scratch / "m");
  EXPECT_NO_THROW(folder.check(std::vector<TensorSpec>{{"a", DType::F32, {2}}}));
  const std::vector<TensorSpec> wanted{{"a", DType::F32, {2}}, {"shared.up", DType::F32, {4, 8}}};
  EXPECT_NE(refusal([&] { folder.check(wanted); }).find("shared.up should be [4, 8]"),
            std::string::npos);
}

TEST(HfFolder, ReleaseGivesMemoryBack) {
  const ScratchFolder scratch;
  constexpr int64_t kBytes = 64 << 20;
  save(scratch / "m", {{"w", DType::U8, {kBytes}}});
  const HfFolder folder = HfFolder::open(scratch / "m");
  const auto resident_file_pages = [] {
    std::ifstream in("/proc/self/statm");
    int64_t size = 0, resident = 0, shared = 0;
    in >> size >> resident >> shared;
    return shared * ::sysconf(_SC_PAGESIZE);
  };
  const int64_t before = resident_file_pages();
  int64_t sum = 0;
  for (const std::byte value : folder.bytes("w")) sum += std::to_integer<int64_t>(value);
  EXPECT_GT(sum, 0);
  EXPECT_GT(resident_file_pages() - before, kBytes / 2);
  folder.release("w");
  EXPECT_LT(resident_file_pages() - before, kBytes / 8);
}

TEST(FolderWriter, RemovesWhatAKilledOneLeft) {
  const ScratchFolder scratch;
  for (const char* name : {".out.tmp-1-1", ".other.tmp-1-1"}) {
    fs::create_directory(scratch / name);
    std::ofstream(scratch / name / ".model.safetensors.tmp-1-0") << "half";
  }
  { FolderWriter writer(scratch / "out", kSpecs); }
  EXPECT_FALSE(fs::exists(scratch / ".out.tmp-1-1"));
  EXPECT_TRUE(fs::exists(scratch / ".other.tmp-1-1"));
  EXPECT_FALSE(fs::exists(scratch / "out"));
  { FolderWriter writer(scratch / "a" / "b" / "out", kSpecs); }
  EXPECT_FALSE(fs::exists(scratch / "a")) << "an empty folder was left";
}

TEST(FolderWriter, AnyFailedWriteLeavesNothing) {
  const ScratchFolder scratch;
  int failures = 0;
  for (bool was_reached = true; was_reached; ++failures) {
    FailingDisk::countdown = failures;
    FailingDisk::failure = ENOSPC;
    try {
      save(scratch / "new" / "out", kSpecs, 20);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
      // The last fsync, of the parent, comes after the rename.
      if (fs::exists(scratch / "new" / "out")) {
        EXPECT_NO_THROW(HfFolder::open(scratch / "new" / "out"));
        fs::remove_all(scratch / "new");
      }
      EXPECT_TRUE(fs::is_empty(scratch.path())) << "call " << failures;
    }
    was_reached = FailingDisk::countdown < 0;
    FailingDisk::countdown = -1;
  }
  EXPECT_GT(failures, 15);
}

TEST(FolderWriter, NeverOverwritesAndLeavesNothing) {
  const ScratchFolder scratch;
  save(scratch / "m/", kSpecs);
  EXPECT_NE(refusal([&] { save(scratch / "m", kSpecs); }).find("already exists"),
            std::string::npos);
  fs::create_directory(scratch / "empty");
  save(scratch / "empty", kSpecs);
  {
    FolderWriter writer(scratch / "half", kSpecs);
    writer.add_file("config.json", "{}");
    EXPECT_THROW(writer.commit(), Error);  // tensors are missing
    EXPECT_THROW(writer.add_file("../x", ""), Error);
    EXPECT_THROW(writer.write("unknown", std::span<const std::byte>()), Error);
  }
  EXPECT_THROW(FolderWriter(scratch / "twice", {kSpecs[0], kSpecs[0]}), Error);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(scratch.path()))
    left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"empty", "m"}));
  save(scratch / "deep/er/m", kSpecs);
  EXPECT_TRUE(fs::exists(scratch / "deep/er/m/model.safetensors"));
}

}  // namespace
}  // namespace dsmoe::store

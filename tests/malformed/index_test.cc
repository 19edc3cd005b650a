// Model folders whose index or set of files is wrong.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/scratch_folder.h"
#include "refusal.h"
#include "store/folder_writer.h"
#include "store/hf_folder.h"

namespace dsmoe::malformed {
namespace {

namespace fs = std::filesystem;
using tensor::DType;

void save(const fs::path& path, std::vector<tensor::TensorSpec> specs) {
  store::SafetensorsWriter writer(path, specs);
  for (const auto& spec : specs) {
    const std::string zeros(store::num_bytes_of(spec), '\0');
    writer.write(spec.name, std::as_bytes(std::span(zeros)));
  }
  writer.finish();
}

// Files 1.safetensors with a and b, 2.safetensors with c.
void save_shards(const ScratchFolder& folder) {
  save(folder / "1.safetensors", {{"a", DType::F32, {2}}, {"b", DType::F32, {2}}});
  save(folder / "2.safetensors", {{"c", DType::BF16, {3}}});
}

void expect_folder_refused(const ScratchFolder& folder, const std::string& fault) {
  std::size_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  expect_refused([&] { store::HfFolder::open(folder.path()); }, bytes, fault);
}

struct Case {
  const char* name;
  const char* index;
  const char* fault;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"Empty", "", "index.json: not valid JSON at byte 0: expected an object, found the end"},
    {"Array", "[]", "expected an object, found \"[\""},
    {"NoMap", R"({"metadata":{"total_size":1}})", "has no \"weight_map\""},
    {"EmptyMap", R"({"weight_map":{}})", "\"weight_map\" is empty"},
    {"MapArray", R"({"weight_map":["1.safetensors"]})", "expected an object, found \"[\""},
    {"MapTwice", R"({"weight_map":{"a":"1.safetensors"},"weight_map":{"a":"1.safetensors"}})",
     "the key \"weight_map\" appears twice"},
    {"MetadataTwice", R"({"metadata":{},"metadata":{}})", "the key \"metadata\" appears twice"},
    {"TensorTwice", R"({"weight_map":{"a":"1.safetensors","a":"1.safetensors"}})",
     "the key \"a\" appears twice"},
    {"FileNumber", R"({"weight_map":{"a":1}})", "expected a string, found \"1\""},
    {"FileAbsolute", R"({"weight_map":{"a":"/etc/x.safetensors"}})",
     "plain *.safetensors files beside the index, found \"/etc/x.safetensors\""},
    {"FileParent", R"({"weight_map":{"a":"../1.safetensors"}})", "found \"../1.safetensors\""},
    {"FileFolder", R"({"weight_map":{"a":"x/1.safetensors"}})", "found \"x/1.safetensors\""},
    {"FileBackslash", R"({"weight_map":{"a":"..\\1.safetensors"}})", "plain *.safetensors files"},
    {"FileHidden", R"({"weight_map":{"a":".safetensors"}})", "plain *.safetensors files"},
    {"FileNul", R"({"weight_map":{"a":"1\u0000.safetensors"}})", "found \"1\\x00.safetensors\""},
    {"FileEmpty", R"({"weight_map":{"a":""}})", "plain *.safetensors files"},
    {"FileOther", R"({"weight_map":{"a":"pytorch_model.bin"}})", "found \"pytorch_model.bin\""},
    {"FileAbsent",
     R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"3.safetensors"}})",
     "the file 3.safetensors does not exist; is the download complete?"},
    {"TensorElsewhere",
     R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"}})",
     "tensor \"b\" is not in 2.safetensors, where the index has it"},
    {"TensorAbsent",
     R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","d":"2.safetensors"}})",
     "tensor \"d\" is not in 2.safetensors"},
    {"TensorExtra", R"({"weight_map":{"a":"1.safetensors","c":"2.safetensors"}})",
     "tensor \"b\" of 1.safetensors is not in the index"},
    {"BrokenUtf8", "{\"weight_map\":{\"\xff\":\"1.safetensors\"}}", "expected valid UTF-8"},
    {"CutOff", R"({"weight_map":{"a":"1.safetensors")", "expected ',' or '}', found the end"},
    {"TextAfter",
     R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}x)",
     "expected nothing after the JSON value"},
    {"BadSkippedValue", R"({"metadata":{"total_size":01}})", "a number without leading zeros"},
    {"BadSkippedWord", R"({"metadata":nul})", "expected a JSON value"},
    {"BadSkippedNumber", R"({"metadata":-})", "expected a digit"},
};

class MalformedIndex : public testing::TestWithParam<Case> {};

TEST_P(MalformedIndex, IsRefused) {
  const ScratchFolder folder;
  save_shards(folder);
  atomic_write_file(folder / "model.safetensors.index.json", GetParam().index);
  expect_folder_refused(folder, GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedIndex, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

TEST(MalformedIndexText, LongTextTakesNoMemory) {
  const auto repeat = [](const std::string& open, const auto& piece, const std::string& close) {
    std::string text = open;
    for (int i = 0; text.size() < 15'000'000; ++i) text += piece(i);
    return text + close;
  };
  const auto refused = [](const std::string& text, const std::string& fault) {
    const ScratchFolder folder;
    atomic_write_file(folder / "model.safetensors.index.json", text);
    expect_folder_refused(folder, fault);
  };
  refused(std::string(17 << 20, ' '), "17825792 bytes, at most 16777216");
  refused(R"({"metadata":)" + std::string(1'000'000, '['), "nested deeper than 64 levels");
  refused(repeat(R"({"metadata":[)", [](int) { return "0,"; }, "0]}"), "has no \"weight_map\"");
  refused(repeat(R"({"weight_map":{)",
                 [](int i) { return fmt::format("\"{}\":\"a.safetensors\",", i); }, "}}"),
          "more than 131072 tensors");
  refused(repeat(R"({"weight_map":{)",
                 [](int i) { return fmt::format("\"{}\":\"{}.safetensors\",", i, i); }, "}}"),
          "more than 1000 files");
}

TEST(MalformedFolder, IsRefused) {
  const std::string good =
      R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}})";
  {
    const ScratchFolder folder;
    save_shards(folder);
    atomic_write_file(folder / "model.safetensors.index.json", good);
    EXPECT_EQ(store::HfFolder::open(folder.path()).names().size(), 3u);
    fs::resize_file(folder / "2.safetensors", fs::file_size(folder / "2.safetensors") - 1);
    expect_folder_refused(
        folder, "2.safetensors: tensor \"c\" ends at byte 6 of the data, the file has only 5");
    fs::remove(folder / "2.safetensors");
    fs::create_directory(folder / "2.safetensors");
    expect_folder_refused(folder, "2.safetensors: expected a regular file, found a folder");
    fs::copy_file(folder / "1.safetensors", folder / "model.safetensors");
    expect_folder_refused(folder, "has both model.safetensors and model.safetensors.index.json");
  }
  const ScratchFolder folder;
  expect_folder_refused(folder, "has neither model.safetensors nor model.safetensors.index.json");
  atomic_write_file(folder / "pytorch_model.bin", "x");
  expect_folder_refused(folder, "pytorch_model.bin is not read: convert it to safetensors");
  expect_refused([&] { store::HfFolder::open(folder / "absent"); }, 0,
                 "expected a model folder, found nothing");
  expect_refused([&] { store::HfFolder::open(folder / "pytorch_model.bin"); }, 0,
                 "expected a model folder, found a file");
}

}  // namespace
}  // namespace dsmoe::malformed

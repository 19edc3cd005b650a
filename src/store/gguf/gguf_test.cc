#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "store/gguf/gguf_file.h"
#include "store/gguf/gguf_tensors.h"
#include "store/gguf/gguf_writer.h"
#include "store/safetensors.h"

namespace dsmoe::store::gguf {
namespace {

const std::filesystem::path kData = DSMOE_SOURCE_DIR "/src/store/gguf/testdata";
constexpr const char* kRead[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0", "Q4_1",
                                 "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};

std::vector<float> numbers_of(const SafetensorsFile& file, const std::string& name) {
  const store::TensorEntry& entry = file.at(name);
  std::vector<float> numbers(static_cast<std::size_t>(entry.shape.num_elements()));
  file.read(entry, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

// Every type's blocks stand for the numbers that PyPI `gguf` takes out of them, bit for bit.
TEST(GgufTypes, EqualTheOracle) {
  const File file = File::open(kData / "types.gguf");
  const auto expected = SafetensorsFile::open(kData / "types.safetensors");
  for (const std::string name : kRead) {
    const TensorEntry* entry = file.find_tensor(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->shape, tensor::Shape({2, 512}));
    EXPECT_EQ(name_of(entry->type), name);
    std::vector<float> numbers(1024);
    dequantise(entry->type, file.bytes(*entry), numbers);
    const std::vector<float> wanted = numbers_of(expected, name);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(numbers[i]), std::bit_cast<uint32_t>(wanted[i]))
          << name << " " << i << ": " << numbers[i] << " for " << wanted[i];
    }
    // Negative control: another byte stands for other numbers.
    std::vector<std::byte> changed(file.bytes(*entry).begin(), file.bytes(*entry).end());
    changed[changed.size() - 1] ^= std::byte{0x11};
    std::vector<float> others(1024);
    dequantise(entry->type, changed, others);
    EXPECT_NE(std::memcmp(others.data(), wanted.data(), 4096), 0) << name;
  }
}

TEST(GgufTypes, WriteTheBytesOfTheOracle) {
  const auto expected = SafetensorsFile::open(kData / "types.safetensors");
  const std::vector<float> numbers = numbers_of(expected, "numbers");
  for (const TensorType type :
       {TensorType::F16, TensorType::BF16, TensorType::Q8_0, TensorType::Q4_0}) {
    const store::TensorEntry& entry = expected.at("written." + name_of(type));
    std::vector<std::byte> bytes(static_cast<std::size_t>(num_bytes(type, 1024)));
    ASSERT_EQ(bytes.size(), entry.num_bytes) << name_of(type);
    encode(type, numbers, bytes);
    EXPECT_EQ(std::memcmp(bytes.data(), expected.bytes(entry).data(), bytes.size()), 0)
        << name_of(type);
  }
}

TEST(GgufTypes, HalvesRoundToNearestEven) {
  const auto half = [](float value) {
    std::byte bytes[2];
    encode(TensorType::F16, std::span(&value, 1), bytes);
    float back = 0;
    dequantise(TensorType::F16, bytes, std::span(&back, 1));
    return back;
  };
  EXPECT_EQ(half(1.0f + 0x1p-11f), 1.0f);            // a tie, to even
  EXPECT_EQ(half(1.0f + 0x3p-11f), 1.0f + 0x1p-9f);  // a tie, to even
  EXPECT_EQ(half(1.0f + 0x1.1p-11f), 1.0f + 0x1p-10f);
  EXPECT_EQ(half(65504.0f), 65504.0f);
  EXPECT_EQ(half(65519.0f), 65504.0f);
  EXPECT_EQ(half(0x1p-24f), 0x1p-24f);
  EXPECT_EQ(half(0x1p-25f), 0.0f);
  EXPECT_EQ(half(0x1.8p-25f), 0x1p-24f);
  EXPECT_EQ(half(-0x1.ff8p-15f), -0x1.ff8p-15f);
  EXPECT_EQ(half(0x1.ffep-15f), 0x1p-14f);
}

TEST(GgufTypes, BlocksOfNearlyNothingAreFinite) {
  std::vector<float> tiny(32, 1e-42f);
  for (const TensorType type : {TensorType::Q8_0, TensorType::Q4_0}) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(num_bytes(type, 32)));
    encode(type, tiny, bytes);
    std::vector<float> back(32, 1.0f);
    dequantise(type, bytes, back);
    for (const float value : back) EXPECT_EQ(value, 0.0f);
  }
}

TEST(GgufFile, ValuesOfEveryType) {
  const File file = File::open(kData / "types.gguf");
  EXPECT_EQ(file.integer("test.uint8"), 200);
  EXPECT_EQ(file.integer("test.int8"), -100);
  EXPECT_EQ(file.integer("test.uint16"), 60000);
  EXPECT_EQ(file.integer("test.int16"), -30000);
  EXPECT_EQ(file.integer("test.uint32"), 4000000000);
  EXPECT_EQ(file.integer("test.int32"), -2000000000);
  EXPECT_EQ(file.integer("test.uint64"), int64_t{1} << 40);
  EXPECT_EQ(file.integer("test.int64"), -(int64_t{1} << 40));
  EXPECT_EQ(file.number("test.float32"), 1e-6);  // not 9.99999997e-07
  EXPECT_EQ(file.number("test.float64"), 1e-300);
  EXPECT_EQ(file.number("test.uint8"), 200.0);
  EXPECT_EQ(file.boolean("test.bool"), true);
  EXPECT_EQ(file.text("test.string"), "grün");
  EXPECT_EQ(file.texts("test.strings"), (std::vector<std::string_view>{"a", "", "grün"}));
  EXPECT_EQ(file.integers("test.integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file.integer("test.absent"), std::nullopt);
  EXPECT_EQ(file.keys_with("test.str"), (std::vector<std::string>{"test.string", "test.strings"}));
  EXPECT_THROW(file.integer("test.float32"), Error);
  EXPECT_THROW(file.integer("test.integers"), Error);
  EXPECT_THROW(file.integers("test.int8"), Error);
  EXPECT_THROW(file.boolean("test.uint8"), Error);
  EXPECT_THROW(file.text("test.bool"), Error);
  EXPECT_THROW(file.texts("test.integers"), Error);
  EXPECT_THROW(file.number("test.string"), Error);
}

TEST(GgufWriter, RoundTrip) {
  const ScratchFolder folder;
  Metadata metadata;
  metadata.integer("a", 7);
  metadata.number("b", 0.1);
  metadata.boolean("c", true);
  metadata.text("d", "x");
  metadata.texts("e", std::vector<std::string>{"", "yz"});
  metadata.integers("f", std::vector<int32_t>{-1, 2});
  EXPECT_THROW(metadata.integer("g", -1), Error);
  EXPECT_THROW(metadata.integer("g", int64_t{1} << 32), Error);
  std::vector<float> matrix(6);
  std::iota(matrix.begin(), matrix.end(), 1.0f);
  Writer writer(folder / "a.gguf", metadata,
                {{"v", TensorType::F32, {3}}, {"w", TensorType::F32, {3, 2}}});
  const auto bytes = std::as_bytes(std::span(matrix));
  writer.write("w", 8, bytes.subspan(8));
  writer.write("v", 0, bytes.first(12));
  writer.write("w", 0, bytes.first(8));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.gguf"));
  writer.finish();
  EXPECT_EQ(std::filesystem::file_size(folder / "a.gguf") % 32, 0u);

  const File file = File::open(folder / "a.gguf");
  EXPECT_EQ(file.integer("a"), 7);
  EXPECT_EQ(file.number("b"), 0.1);
  EXPECT_EQ(file.texts("e"), (std::vector<std::string_view>{"", "yz"}));
  EXPECT_EQ(file.integers("f"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file.find_tensor("w")->shape, tensor::Shape({3, 2}));
  EXPECT_EQ(file.find_tensor("w")->offset % 32, 0u);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find_tensor("w")).data(), matrix.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find_tensor("v")).data(), matrix.data(), 12), 0);
}

TEST(GgufWriter, RefusesWhatTheFormatCannotHold) {
  const ScratchFolder folder;
  const auto make = [&](TensorSpec spec) { Writer(folder / "a.gguf", {}, {std::move(spec)}); };
  EXPECT_THROW(make({"w", TensorType::Q8_0, {4, 48}}), Error);
  EXPECT_THROW(make({std::string(64, 'w'), TensorType::F32, {4}}), Error);
  EXPECT_NO_THROW(make({std::string(63, 'w'), TensorType::F32, {4}}));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.gguf"));
}

// A part is what the whole has there, taken out of its blocks alone or lying in the file.
TEST(GgufTensors, PartsAreThoseOfTheWhole) {
  ThreadPool pool(2);
  for (const std::string name : kRead) {
    GgufTensors whole(File::open(kData / "types.gguf"), pool);
    GgufTensors parts(File::open(kData / "types.gguf"), pool);
    const tensor::TensorView all = whole.tensor(name);
    EXPECT_EQ(all.shape, tensor::Shape({2, 512}));
    const auto size = tensor::size_of(all.dtype);
    for (const int64_t first : {0, 256, 512}) {
      const tensor::TensorView part = parts.part(name, first, 512);
      EXPECT_EQ(part.dtype, all.dtype);
      EXPECT_EQ(std::memcmp(part.data,
                            static_cast<const std::byte*>(all.data) +
                                static_cast<std::size_t>(first) * size,
                            512 * size),
                0)
          << name << " from " << first;
      parts.release_part(name, first, 512);
    }
  }
}

TEST(GgufTensors, DifferencesAreNamed) {
  const ScratchFolder folder;
  Writer writer(folder / "a.gguf", {},
                {{"x", TensorType::F32, {2}},
                 {"zero.bias", TensorType::F32, {2}},
                 {"more.bias", TensorType::F32, {2}}});
  const float ones[] = {1, 1}, zeros[] = {0, 0};
  writer.write("x", 0, std::as_bytes(std::span(ones)));
  writer.write("zero.bias", 0, std::as_bytes(std::span(zeros)));
  writer.write("more.bias", 0, std::as_bytes(std::span(ones)));
  writer.finish();
  const File file = File::open(folder / "a.gguf");
  const std::vector<tensor::TensorSpec> expected = {{.name = "x", .shape = {3}},
                                                    {.name = "y", .shape = {1}}};
  try {
    check_tensors(file, expected, [&](const TensorEntry& entry) {
      return entry.name.ends_with(".bias") && is_zero(file, entry);
    });
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("x should be [3], the file has [2]"), std::string::npos) << text;
    EXPECT_NE(text.find("y [1] is missing"), std::string::npos) << text;
    EXPECT_NE(text.find("\"more.bias\" [2] is extra"), std::string::npos) << text;
    EXPECT_EQ(text.find("zero.bias"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace dsmoe::store::gguf

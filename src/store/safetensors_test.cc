#include "store/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"

namespace dsmoe::store {
namespace {

using tensor::DType;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string content(const std::filesystem::path& path) { return read_small_file(path, 1 << 20); }

TEST(Safetensors, RoundTrip) {
  const ScratchFolder folder;
  std::vector<float> matrix(6);
  std::iota(matrix.begin(), matrix.end(), 1.0f);
  SafetensorsWriter writer(folder / "a.safetensors", {{"b", DType::U8, {3}},
                                                      {"w", DType::F32, {2, 3}},
                                                      {"empty", DType::BF16, {0, 4}},
                                                      {"scalar", DType::F32, {}},
                                                      {"é\"\n", DType::I64, {1}}});
  writer.write("b", bytes_of("x"));
  writer.write("w", {.data = matrix.data(), .dtype = DType::F32, .shape = {2, 3}});
  writer.write("scalar", std::as_bytes(std::span(matrix).first(1)));
  writer.write("b", bytes_of("yz"));
  writer.write("é\"\n", bytes_of("12345678"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors"));
  writer.finish();

  const SafetensorsFile file = SafetensorsFile::open(folder / "a.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 5u);
  const TensorEntry& w = file.at("w");
  EXPECT_EQ(w.shape, tensor::Shape({2, 3}));
  EXPECT_EQ(w.dtype, DType::F32);
  EXPECT_EQ(w.offset % 4, 0u);
  EXPECT_EQ(std::memcmp(file.bytes(w).data(), matrix.data(), 24), 0);
  std::vector<float> copy(2);
  file.read(w, std::as_writable_bytes(std::span(copy)), 8);
  EXPECT_EQ(copy, (std::vector<float>{3, 4}));
  file.release(w);
  EXPECT_EQ(std::memcmp(file.bytes(w).data(), matrix.data(), 24), 0);
  EXPECT_EQ(file.at("empty").num_bytes, 0u);
  EXPECT_EQ(file.at("scalar").shape.rank(), 0);
  EXPECT_EQ(std::memcmp(file.bytes(file.at("b")).data(), "xyz", 3), 0);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_THROW(file.at("nothing"), Error);
}

// In the page where a file ends a cut reads as zeros: weights that nobody stored.
TEST(Safetensors, ACutWhileATensorIsReadIsNamed) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "a.safetensors", {{"b", DType::U8, {3}}});
  writer.write("b", bytes_of("xyz"));
  writer.finish();
  const SafetensorsFile file = SafetensorsFile::open(folder / "a.safetensors");
  const TensorEntry& b = file.at("b");
  file.release(b);
  std::filesystem::resize_file(folder / "a.safetensors", b.offset + 1);
  try {
    file.release(b);
    FAIL() << "zeros were taken for weights";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a.safetensors: ends at byte"), std::string::npos)
        << error.what();
  }
}

// The text is what Python's safetensors 0.8 writes for the same tensors.
TEST(Safetensors, BytesAreThoseOfPython) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "a", {{"b", DType::BF16, {3}},
                                          {"a", DType::F32, {2, 2}},
                                          {"c", DType::I64, {1}},
                                          {"a0", DType::F32, {0, 4}},
                                          {"s", DType::F32, {}},
                                          {"é\"\n", DType::F32, {1}},
                                          {"u", DType::U8, {1}}});
  for (const auto& [name, size] :
       {std::pair{"a", 16}, {"b", 6}, {"c", 8}, {"s", 4}, {"é\"\n", 4}, {"u", 1}}) {
    writer.write(name, bytes_of(std::string(size, '\0')));
  }
  writer.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},"a0":{"dtype":"F32","shape":[0,4],"data_offsets":[24,24]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[24,28]},"é\"\n":{"dtype":"F32","shape":[1],"data_offsets":[28,32]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]},"u":{"dtype":"U8","shape":[1],"data_offsets":[38,39]}} )";
  ASSERT_EQ(header.size(), 424u);
  EXPECT_EQ(content(folder / "a"),
            std::string("\xa8\x01\0\0\0\0\0\0", 8) + header + std::string(39, '\0'));
}

TEST(Safetensors, EveryTypeInBothDirections) {
  const ScratchFolder folder;
  std::vector<tensor::TensorSpec> specs;
  for (const DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                           DType::U8, DType::I8}) {
    specs.push_back({std::string(tensor::name_of(type)), type, {3}});
  }
  SafetensorsWriter writer(folder / "a", specs);
  for (const auto& spec : specs)
    writer.write(spec.name, bytes_of(std::string(num_bytes_of(spec), spec.name[0])));
  writer.finish();
  const SafetensorsFile file = SafetensorsFile::open(folder / "a");
  for (const auto& spec : specs) {
    const TensorEntry& entry = file.at(spec.name);
    EXPECT_EQ(entry.dtype, spec.dtype);
    EXPECT_EQ(entry.offset % tensor::size_of(spec.dtype), 0u);
    EXPECT_EQ(static_cast<char>(file.bytes(entry).back()), spec.name[0]);
  }
}

TEST(Safetensors, NoTensorsAtAll) {
  const ScratchFolder folder;
  SafetensorsWriter(folder / "a", {}, {}).finish();
  EXPECT_EQ(content(folder / "a"), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(SafetensorsFile::open(folder / "a").tensors().empty());
}

TEST(Safetensors, WriterRefusesMistakesAndLeavesNothing) {
  const ScratchFolder folder;
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"x", DType::F32, {1}}, {"x", DType::U8, {1}}}),
               Error);
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"\xff", DType::F32, {1}}}), Error);
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"__metadata__", DType::F32, {1}}}), Error);
  {
    SafetensorsWriter writer(folder / "a", {{"x", DType::F32, {1}}});
    EXPECT_THROW(writer.write("y", bytes_of("1234")), Error);
    EXPECT_THROW(writer.write("x", bytes_of("12345")), Error);
    writer.write("x", bytes_of("123"));
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, UnalignedDataIsRead) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  ASSERT_NE((8 + header.size()) % 4, 0u);
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + "abcd";
  EXPECT_EQ(parse_safetensors(bytes_of(file), "t").tensors.at(0).offset, 8 + header.size());
}

}  // namespace
}  // namespace dsmoe::store

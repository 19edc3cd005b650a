// Safetensors files that break one rule each.
#include "store/safetensors.h"
#include "base/atomic_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/scratch_folder.h"
#include "refusal.h"

namespace dsmoe::malformed {
namespace {

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string file(const std::string& header, std::size_t data_size = 0) {
  return length_prefix(header.size()) + header + std::string(data_size, '\1');
}

// One F32 tensor of four bytes, with `part` of its description replaced.
std::string with(const std::string& dtype, const std::string& shape, const std::string& offsets,
                 std::size_t data_size = 4) {
  return file(
      R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
      data_size);
}

// `count` tensors without bytes, then `tail`.
std::string many_tensors(int count, const std::string& tail) {
  std::string header = "{";
  for (int i = 0; i < count; ++i) {
    header += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  return file(header + tail);
}

std::string many_entries(int count) {
  std::string header = R"({"__metadata__":{)";
  for (int i = 0; i < count; ++i) header += fmt::format("\"{}\":\"\",", i);
  return file(header + "\"z\":\"\"}}");
}

std::string nested(int depth) { return file(R"({"a":)" + std::string(depth, '[')); }

std::string long_string(std::size_t size) { return fmt::format("\"{}\"", std::string(size, 'n')); }

constexpr const char* kGood = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";

struct Case {
  const char* name;
  std::string (*make)();
  const char* fault;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"Empty", [] { return std::string(); }, "0 bytes, a safetensors file has at least 8"},
    {"SevenBytes", [] { return std::string(7, '\0'); },
     "7 bytes, a safetensors file has at least 8"},
    {"LengthZero", [] { return length_prefix(0); }, "must begin with '{', found an empty header"},
    {"LengthBeyondFile", [] { return length_prefix(3) + "{}"; },
     "claims 3 bytes, the file has only 2"},
    {"LengthHuge", [] { return length_prefix(~uint64_t{0}) + "{}"; },
     "claims 18446744073709551615 bytes, at most"},
    {"LengthAboveCap", [] { return length_prefix(100'000'000) + "{}"; },
     "claims 100000000 bytes, at most 16777216"},
    {"HeaderAboveCap", [] { return file(std::string("{").append(100'000'000, ' ') + "}"); },
     "claims 100000002 bytes"},
    {"NotJson", [] { return std::string("PK\3\4") + std::string(60, 'x'); },
     "is it a safetensors file?"},
    {"FirstByteSpace", [] { return file(" {}"); }, "must begin with '{', found \" \""},
    {"FirstByteBracket", [] { return file("[]"); }, "must begin with '{', found \"[\""},
    {"FirstByteControl", [] { return file("\x1b{}"); }, "must begin with '{', found \"\\x1b\""},
    {"HeaderCutOff", [] { return file(R"({"a":{"dtype":"F32")"); },
     "expected ',' or '}', found the end"},
    {"TextAfterObject", [] { return file("{} {}"); },
     "at byte 3: expected nothing after the JSON value"},
    {"NulPadding", [] { return file(std::string("{}\0\0\0", 5)); },
     "at byte 2: expected nothing after"},
    {"TrailingComma", [] { return file(std::string("{") + kGood + ",}", 4); },
     "expected a key in quotes"},
    {"SingleQuotes", [] { return file("{'a':1}"); }, "expected a key in quotes, found \"'\""},
    {"Comment", [] { return file("{/**/}"); }, "expected a key in quotes, found \"/\""},
    {"BrokenUtf8", [] { return file("{\"\xc3\x28\":{}}"); }, "at byte 2: expected valid UTF-8"},
    {"OverlongUtf8", [] { return file("{\"\xc0\xaf\":{}}"); }, "at byte 2: expected valid UTF-8"},
    {"SurrogateUtf8", [] { return file("{\"\xed\xa0\x80\":{}}"); },
     "at byte 2: expected valid UTF-8"},
    {"BeyondUnicode", [] { return file("{\"\xf4\x90\x80\x80\":{}}"); },
     "at byte 2: expected valid UTF-8"},
    {"LoneSurrogateEscape", [] { return file(R"({"\ud800x":{}})"); },
     "a low surrogate after the high one"},
    {"LoneLowSurrogate", [] { return file(R"({"\udc00":{}})"); },
     "a high surrogate before the low one"},
    {"BadEscape", [] { return file(R"({"\x":{}})"); }, "an escape that JSON knows"},
    {"BadHex", [] { return file(R"({"\u12g4":{}})"); }, "four hexadecimal digits"},
    {"RawNewlineInName", [] { return file("{\"a\nb\":{}}"); }, "control characters to be escaped"},
    {"DuplicateTensor", [] { return file(std::string("{") + kGood + "," + kGood + "}", 4); },
     "the key \"b\" appears twice in the header"},
    {"DuplicateByEscape",
     [] {
       return file(std::string("{") + kGood +
                       R"(,"\u0062":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
                   4);
     },
     "the key \"b\" appears twice in the header"},
    {"DuplicateMetadata", [] { return file(R"({"__metadata__":{},"__metadata__":{}})"); },
     "the key \"__metadata__\" appears twice"},
    {"DuplicateMetadataKey", [] { return file(R"({"__metadata__":{"a":"1","a":"1"}})"); },
     "the key \"a\" appears twice in __metadata__"},
    {"DuplicateField", [] { return with(R"("F32","dtype":"F32")", "[1]", "[0,4]"); },
     "tensor \"a\" has the key \"dtype\" twice"},
    {"MetadataNumber", [] { return file(R"({"__metadata__":{"a":1}})"); },
     "expected a string, found \"1\""},
    {"MetadataArray", [] { return file(R"({"__metadata__":[]})"); },
     "expected an object, found \"[\""},
    {"TensorNotObject", [] { return file(R"({"a":[1]})"); }, "expected an object, found \"[\""},
    {"UnknownField", [] { return with(R"("F32","strides":[1])", "[1]", "[0,4]"); },
     "tensor \"a\" has the key \"strides\"; the format knows"},
    {"NoDtype", [] { return file(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4); },
     "tensor \"a\" has no \"dtype\""},
    {"NoShape", [] { return file(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4); },
     "tensor \"a\" has no \"shape\""},
    {"NoOffsets", [] { return file(R"({"a":{"dtype":"F32","shape":[1]}})", 4); },
     "tensor \"a\" has no \"data_offsets\""},
    {"EmptyTensor", [] { return file(R"({"a":{}})"); }, "tensor \"a\" has no \"dtype\""},
    {"DtypeUnknown", [] { return with(R"("F33")", "[1]", "[0,4]"); },
     "type \"F33\", which safetensors does not define"},
    {"DtypeLowerCase", [] { return with(R"("f32")", "[1]", "[0,4]"); },
     "which safetensors does not define"},
    {"DtypeNumber", [] { return with("32", "[1]", "[0,4]"); }, "expected a string"},
    {"DtypeFloat8", [] { return with(R"("F8_E4M3")", "[4]", "[0,4]"); },
     "type F8_E4M3, which dsmoe does not read; convert it to F32, F16 or BF16"},
    {"DtypeBool", [] { return with(R"("BOOL")", "[4]", "[0,4]"); },
     "type BOOL, which dsmoe does not read"},
    {"DtypeFloat4", [] { return with(R"("F4")", "[8]", "[0,4]"); },
     "type F4, which dsmoe does not read"},
    {"DtypeU16", [] { return with(R"("U16")", "[2]", "[0,4]"); },
     "type U16, which dsmoe does not read"},
    {"ShapeNegative", [] { return with(R"("F32")", "[-1]", "[0,4]"); },
     "expected an unsigned integer, found \"-\""},
    {"ShapeFraction", [] { return with(R"("F32")", "[1.0]", "[0,4]"); },
     "expected an unsigned integer"},
    {"ShapeExponent", [] { return with(R"("F32")", "[1e0]", "[0,4]"); },
     "expected an unsigned integer"},
    {"ShapeString", [] { return with(R"("F32")", R"(["1"])", "[0,4]"); },
     "expected an unsigned integer"},
    {"ShapeLeadingZero", [] { return with(R"("F32")", "[01]", "[0,4]"); },
     "a number without leading zeros"},
    {"ShapeBeyond64Bits", [] { return with(R"("F32")", "[18446744073709551616]", "[0,4]"); },
     "an integer below 2^64"},
    {"ShapeNotArray", [] { return with(R"("F32")", "1", "[0,4]"); },
     "expected an array, found \"1\""},
    {"ShapeRankFive", [] { return with(R"("F32")", "[1,1,1,1,1]", "[0,4]"); },
     "has more than 4 dimensions"},
    {"ShapeOverflow",
     [] { return with(R"("F32")", "[4294967296,4294967296,4294967296]", "[0,4]"); },
     "the shape of tensor \"a\" has too many elements"},
    {"ShapeWrapsToOne", [] { return with(R"("F32")", "[9223372036854775809]", "[0,4]"); },
     "too many elements"},
    {"ShapeHugeTimesZero", [] { return with(R"("F32")", "[4294967296,4294967296,0]", "[0,0]", 0); },
     "too many elements"},
    {"ShapeNotBytes", [] { return with(R"("F32")", "[2]", "[0,4]"); },
     "tensor \"a\" is F32 [2] and needs 8 bytes, its data_offsets hold 4"},
    {"ScalarWithoutBytes", [] { return with(R"("F32")", "[]", "[0,0]", 0); },
     "needs 4 bytes, its data_offsets hold 0"},
    {"OffsetsReversed", [] { return with(R"("F32")", "[1]", "[4,0]"); },
     "begins at 4 and ends before it, at 0"},
    {"OffsetsOne", [] { return with(R"("F32")", "[1]", "[4]"); },
     "has 1 data_offsets, expected begin and end"},
    {"OffsetsThree", [] { return with(R"("F32")", "[1]", "[0,4,4]"); }, "has 3 data_offsets"},
    {"OffsetsBeyondFile", [] { return with(R"("F32")", "[1]", "[4,8]"); },
     "ends at byte 8 of the data, the file has only 4"},
    {"OffsetsHuge",
     [] { return with(R"("F32")", "[1]", "[18446744073709551612,18446744073709551615]"); },
     "the file has only 4; is it truncated?"},
    {"Truncated", [] { return with(R"("F32")", "[1]", "[0,4]", 3); },
     "the file has only 3; is it truncated?"},
    {"HoleAtStart", [] { return with(R"("F32")", "[1]", "[4,8]", 8); },
     "tensor \"a\" begins at byte 4 of the data, the one before it ends at 0: a hole"},
    {"HoleInside",
     [] {
       return file(
           std::string("{") + kGood + R"(,"c":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
           6);
     },
     "tensor \"c\" begins at byte 5 of the data, the one before it ends at 4: a hole"},
    {"Overlap",
     [] {
       return file(
           std::string("{") + kGood + R"(,"c":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
           6);
     },
     "tensor \"c\" begins at byte 2 of the data, the one before it ends at 4: they overlap"},
    {"SameBytesTwice",
     [] {
       return file(
           std::string("{") + kGood + R"(,"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           4);
     },
     "they overlap"},
    {"BytesAfterTheLast", [] { return with(R"("F32")", "[1]", "[0,4]", 5); },
     "the tensors end at byte 4 of the data, the file has 5"},
    {"DataWithoutTensors", [] { return file("{}", 1); },
     "the tensors end at byte 0 of the data, the file has 1"},
    {"NestedDeep", [] { return nested(1 << 20); }, "expected an object, found \"[\""},
    {"TooManyTensors", [] { return many_tensors(131073, "}"); }, "more than 131072 tensors"},
    {"ManyTensorsThenFault", [] { return many_tensors(131071, R"("z":{}})"); },
     "tensor \"z\" has no \"dtype\""},
    {"ManyTensorsThenHole",
     [] {
       return many_tensors(131071, R"("z":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})") + "x";
     },
     "tensor \"z\" begins at byte 1"},
    {"TooManyMetadataEntries", [] { return many_entries(1'000'000); },
     "__metadata__ has more than 4096 entries"},
    {"LongName", [] { return file(fmt::format("{{{}:1}}", long_string(16'000'000))); },
     "expected an object"},
    {"LongNameTwice",
     [] {
       const std::string tensor =
           long_string(8'000'000) + R"(:{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
       return file(fmt::format("{{{},{}}}", tensor, tensor));
     },
     "...\" (8000000 bytes) appears twice"},
    {"LongMetadata",
     [] { return file(R"({"__metadata__":{"a":")" + std::string(16'000'000, 'n') + "\"}}", 1); },
     "the tensors end at byte 0"},
    {"LongDtype", [] { return with(long_string(16'000'000), "[1]", "[0,4]"); },
     "which safetensors does not define"},
};

class MalformedSafetensors : public testing::TestWithParam<Case> {};

TEST_P(MalformedSafetensors, IsRefused) {
  const ScratchFolder scratch;
  std::size_t size = 0;
  {
    const std::string bytes = GetParam().make();
    size = bytes.size();
    atomic_write_file(scratch / "f.safetensors", bytes);
  }
  expect_refused([&] { store::SafetensorsFile::open(scratch / "f.safetensors"); }, size,
                 GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedSafetensors, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

// A file is refused or read, whatever byte of it is wrong and wherever it is cut off.
TEST(DamagedSafetensors, EveryCutIsRefusedAndEveryFlipIsSafe) {
  const std::string good = file(std::string(R"({"__metadata__":{"format":"pt"},)") + kGood +
                                    R"(,"c":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]}})",
                                16);
  const auto read = [](const std::string& bytes) {
    try {
      store::parse_safetensors(std::as_bytes(std::span(bytes)), "f");
    } catch (const Error& e) {
      return e.kind() == ErrorKind::input ? 0 : 2;
    }
    return 1;
  };
  ASSERT_EQ(read(good), 1);
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(read(good.substr(0, size)), 0) << size;
  EXPECT_EQ(read(good + "x"), 0);
  int accepted = 0;
  for (std::size_t at = 0; at < good.size() - 16; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bad = good;
      bad[at] = static_cast<char>(value);
      const int result = read(bad);
      ASSERT_NE(result, 2) << at << " " << value;
      accepted += result;
    }
  }
  EXPECT_GT(accepted, 0);  // other names and other metadata are fine
}

}  // namespace
}  // namespace dsmoe::malformed

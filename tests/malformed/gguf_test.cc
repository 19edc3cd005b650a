// GGUF files that break one rule each: of the format, of a configuration, of a tokenizer.
#include "store/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/atomic_file.h"
#include "base/scratch_folder.h"
#include "model/config.h"
#include "refusal.h"
#include "store/gguf/gguf_writer.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::malformed {
namespace {

using store::gguf::Metadata;
using store::gguf::TensorType;
using store::gguf::Writer;

enum : uint32_t { kUint8, kInt8, kUint32 = 4, kFloat32 = 6, kBool, kString, kArray, kUint64 };

// The bytes of a file, put together as a stranger may.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& raw(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  Bytes& string(const std::string& text) { return put(uint64_t{text.size()}).raw(text); }
  Bytes& header(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    return raw("GGUF").put(version).put(tensors).put(values);
  }
  Bytes& key(const std::string& name, uint32_t type) { return string(name).put(type); }
  Bytes& array(const std::string& name, uint32_t type, uint64_t count) {
    return key(name, uint32_t{kArray}).put(type).put(count);
  }
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                uint64_t offset) {
    string(name).put(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  Bytes& data(std::size_t count) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32, '\0');
    bytes_.append(count, '\1');
    return *this;
  }
  operator std::string() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string one_tensor(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                       std::size_t data) {
  return Bytes().header(1, 0).tensor("w", dims, type, offset).data(data);
}

std::string aligned_to(uint32_t alignment) {
  return Bytes().header(0, 1).key("general.alignment", kUint32).put(alignment);
}

struct Case {
  const char* name;
  std::string (*make)();
  const char* fault;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr Case kFormat[] = {
    {"Empty", [] { return std::string(); }, "begins with \"GGUF\""},
    {"HalfMagic", [] { return std::string("GG"); }, "begins with \"GGUF\""},
    {"OtherMagic", [] { return std::string("GGMLxxxxxxxxxxxxxxxxxxxx"); }, "begins with \"GGUF\""},
    {"NoVersion", [] { return std::string("GGUF\3"); }, "the version at byte 4 needs 4 bytes"},
    {"VersionOne", [] { return std::string(Bytes().header(0, 0, 1)); }, "GGUF version 1"},
    {"VersionFour", [] { return std::string(Bytes().header(0, 0, 4)); }, "GGUF version 4"},
    {"BigEndian", [] { return std::string(Bytes().header(0, 0, 0x03000000)); }, "big-endian"},
    {"NoCounts", [] { return std::string(Bytes().raw("GGUF").put(uint32_t{3})); },
     "the number of tensors at byte 8 needs 8 bytes"},
    {"TensorsWithoutEnd", [] { return std::string(Bytes().header(~uint64_t{0}, 0)); },
     "claims 18446744073709551615 tensors"},
    {"ValuesWithoutEnd", [] { return std::string(Bytes().header(0, uint64_t{1} << 40)); },
     "claims 1099511627776 metadata values"},
    {"TensorsThatAreNotThere", [] { return std::string(Bytes().header(100000, 0)); },
     "the name of a tensor at byte 24 needs 8 bytes"},
    {"ValuesThatAreNotThere", [] { return std::string(Bytes().header(0, 4096)); },
     "a key at byte 24 needs 8 bytes"},
    {"KeyBeyondTheFile",
     [] { return std::string(Bytes().header(0, 1).put(~uint64_t{0}).raw("abc")); },
     "a key at byte 32 needs 18446744073709551615 bytes, the file has 3 more"},
    {"KeyEmpty", [] { return std::string(Bytes().header(0, 1).key("", kUint8).put('a')); },
     "a key must be 1 to 1024 bytes of UTF-8"},
    {"KeyTooLong",
     [] { return std::string(Bytes().header(0, 1).key(std::string(1025, 'k'), kUint8).put('a')); },
     "a key must be 1 to 1024 bytes of UTF-8, found 1025"},
    {"KeyNotText", [] { return std::string(Bytes().header(0, 1).key("\xff", kUint8).put('a')); },
     "a key must be 1 to 1024 bytes of UTF-8"},
    {"KeyTwice",
     [] {
       return std::string(Bytes().header(0, 2).key("k", kUint8).put('a').key("k", kUint8).put('a'));
     },
     "the key \"k\" appears twice"},
    {"TypeUnknown", [] { return std::string(Bytes().header(0, 1).key("k", 13)); },
     "\"k\" has the type 13; GGUF defines 0 to 12"},
    {"ValueCut", [] { return std::string(Bytes().header(0, 1).key("k", kUint64).put('a')); },
     "a value at byte 37 needs 8 bytes, the file has 1 more"},
    {"BoolOfTwo", [] { return std::string(Bytes().header(0, 1).key("k", kBool).put('\2')); },
     "\"k\" holds 2; a bool is 0 or 1"},
    {"StringBeyondTheFile",
     [] { return std::string(Bytes().header(0, 1).key("k", kString).put(uint64_t{1} << 63)); },
     "a string at byte 45 needs 9223372036854775808 bytes"},
    {"ArrayBeyondTheFile",
     [] { return std::string(Bytes().header(0, 1).array("k", kUint32, uint64_t{1} << 62)); },
     "\"k\" claims 4611686018427387904 elements"},
    {"ArrayOfStringsBeyondTheFile",
     [] { return std::string(Bytes().header(0, 1).array("k", kString, 3).raw("12345678")); },
     "\"k\" claims 3 elements"},
    {"ArrayCutInAString",
     [] {
       return std::string(
           Bytes().header(0, 1).array("k", kString, 2).string("").put(uint64_t{9}).raw("short"));
     },
     "a string at byte 65 needs 9 bytes, the file has 5 more"},
    {"ArrayOfArrays", [] { return std::string(Bytes().header(0, 1).array("k", kArray, 0)); },
     "\"k\" is an array of arrays"},
    {"ArrayOfUnknownType", [] { return std::string(Bytes().header(0, 1).array("k", 99, 0)); },
     "\"k\" has the type 99"},
    {"ArrayOfBoolsOfTwo",
     [] { return std::string(Bytes().header(0, 1).array("k", kBool, 2).put('\1').put('\2')); },
     "\"k\" holds 2"},
    {"AlignmentZero", [] { return aligned_to(0); }, "a power of two up to 1048576, found 0"},
    {"AlignmentThree", [] { return aligned_to(3); }, "a power of two up to 1048576, found 3"},
    {"AlignmentHuge", [] { return aligned_to(1u << 31); }, "a power of two up to 1048576"},
    {"AlignmentOfText",
     [] { return std::string(Bytes().header(0, 1).key("general.alignment", kString).string("x")); },
     "general.alignment must be a uint32, a power of two up to 1048576, found string"},
    {"NameEmpty", [] { return std::string(Bytes().header(1, 0).tensor("", {1}, 0, 0).data(4)); },
     "the name of a tensor must be 1 to 64 bytes"},
    {"NameTooLong",
     [] {
       return std::string(Bytes().header(1, 0).tensor(std::string(65, 'n'), {1}, 0, 0).data(4));
     },
     "the name of a tensor must be 1 to 64 bytes of UTF-8, found 65"},
    {"NameTwice",
     [] {
       return std::string(
           Bytes().header(2, 0).tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32).data(64));
     },
     "two tensors are called \"w\""},
    {"NoDimensions", [] { return one_tensor({}, 0, 0, 4); }, "tensor \"w\" has 0 dimensions"},
    {"FiveDimensions",
     [] {
       return one_tensor({1, 1, 1, 1, 1}, 0, 0, 4);
     },
     "tensor \"w\" has 5 dimensions; 1 to 4 are read"},
    {"DimensionZero", [] { return one_tensor({0}, 0, 0, 4); },
     "the shape of tensor \"w\" has no elements"},
    {"DimensionNegative", [] { return one_tensor({~uint64_t{0}}, 0, 0, 4); },
     "the shape of tensor \"w\" has too many elements"},
    {"DimensionsOverflow",
     [] {
       return one_tensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0, 4);
     },
     "the shape of tensor \"w\" has too many elements"},
    {"TypeThatIsNotRead", [] { return one_tensor({256}, 23, 0, 136); },
     "tensor \"w\" has type IQ4_XS, which dsmoe does not read"},
    {"TypeThatNobodyNamed", [] { return one_tensor({256}, 999, 0, 136); },
     "tensor \"w\" has type 999, which dsmoe does not read"},
    {"RowsOfHalfABlock",
     [] {
       return one_tensor({48, 2}, 8, 0, 102);
     },
     "tensor \"w\" has rows of 48 numbers; Q8_0 holds 32 in a block"},
    {"RowsOfHalfASuperBlock", [] { return one_tensor({128}, 12, 0, 72); },
     "rows of 128 numbers; Q4_K holds 256 in a block"},
    {"DataCut", [] { return one_tensor({4}, 0, 0, 15); },
     "tensor \"w\" needs 16 bytes from byte 0 of the data, which has 15; is it cut?"},
    {"DataAbsent", [] { return std::string(Bytes().header(1, 0).tensor("w", {4}, 0, 0)); },
     "which has 0; is it cut?"},
    {"DataBehindTheLast", [] { return one_tensor({4}, 0, 0, 33); },
     "the tensors end at byte 96, the file has 97"},
    {"OffsetBeyondTheFile", [] { return one_tensor({4}, 0, uint64_t{1} << 63, 16); },
     "tensor \"w\" begins at byte 9223372036854775808 of the data, the one before it ends at 0: a "
     "hole"},
    {"OffsetUnaligned", [] { return one_tensor({4}, 0, 4, 32); }, "a hole"},
    {"TensorsOverlap",
     [] {
       return std::string(
           Bytes().header(2, 0).tensor("v", {8}, 0, 0).tensor("w", {8}, 0, 0).data(32));
     },
     "the one before it ends at 32: they overlap"},
};

void expect_file_refused(const std::string& bytes, const std::function<void(const std::string&)>& f,
                         const std::string& fault) {
  const ScratchFolder folder;
  const std::string path = (folder / "x.gguf").string();
  atomic_write_file(path, bytes);
  expect_refused([&] { f(path); }, bytes.size(), fault);
}

class GgufFormat : public testing::TestWithParam<Case> {};

TEST_P(GgufFormat, IsRefused) {
  expect_file_refused(
      GetParam().make(), [](const std::string& path) { store::gguf::File::open(path); },
      GetParam().fault);
}
INSTANTIATE_TEST_SUITE_P(Malformed, GgufFormat, testing::ValuesIn(kFormat),
                         [](const auto& test) { return test.param.name; });

// The parser ends well on every beginning of a good file and accepts none of them.
TEST(GgufCut, EveryBeginningIsRefused) {
  const std::string whole = Bytes()
                                .header(2, 3)
                                .key("a", kFloat32)
                                .put(1.0f)
                                .array("b", kString, 2)
                                .string("x")
                                .string("yz")
                                .key("c", kString)
                                .string("grün")
                                .tensor("v", {8}, 0, 0)
                                .tensor("w", {32, 2}, 8, 32)
                                .data(32 + 68);
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  EXPECT_EQ(store::gguf::parse(bytes_of(whole), "x").tensors.size(), 2u);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(store::gguf::parse(bytes_of(whole.substr(0, size)), "x"), Error) << size;
  }
}

// A model of one layer and its tokenizer, with one thing changed.
struct Change {
  std::string key;
  std::function<void(Metadata&, const std::string&)> put = {};  // nothing: the key is left out
};

Change integer(const char* key, int64_t value) {
  return {key, [=](Metadata& m, const std::string& name) { m.integer(name, value); }};
}
Change number(const char* key, double value) {
  return {key, [=](Metadata& m, const std::string& name) { m.number(name, value); }};
}
Change boolean(const char* key, bool value) {
  return {key, [=](Metadata& m, const std::string& name) { m.boolean(name, value); }};
}
Change text(const char* key, std::string value) {
  return {key, [=](Metadata& m, const std::string& name) { m.text(name, value); }};
}
Change texts(const char* key, std::vector<std::string> values) {
  return {key, [=](Metadata& m, const std::string& name) { m.texts(name, values); }};
}
Change integers(const char* key, std::vector<int32_t> values) {
  return {key, [=](Metadata& m, const std::string& name) { m.integers(name, values); }};
}
Change absent(const char* key) { return {key}; }

void write_model(const std::string& path, const Change& change) {
  const std::vector<Change> good = {
      text("general.architecture", "deepseek"),
      integer("deepseek.block_count", 1),
      integer("deepseek.context_length", 64),
      integer("deepseek.embedding_length", 8),
      integer("deepseek.attention.head_count", 2),
      number("deepseek.attention.layer_norm_rms_epsilon", 1e-6),
      integer("deepseek.expert_count", 4),
      integer("deepseek.expert_used_count", 2),
      integer("deepseek.expert_shared_count", 1),
      integer("deepseek.expert_feed_forward_length", 4),
      text("tokenizer.ggml.model", "gpt2"),
      text("tokenizer.ggml.pre", "gpt-2"),
      texts("tokenizer.ggml.tokens", {"a", "b", "ab"}),
      integers("tokenizer.ggml.token_type", {1, 1, 1}),
      texts("tokenizer.ggml.merges", {"a b"}),
  };
  Metadata metadata;
  bool is_new = true;
  for (const Change& value : good) {
    const Change& taken = value.key == change.key ? change : value;
    is_new = is_new && value.key != change.key;
    if (taken.put) taken.put(metadata, taken.key);
  }
  if (is_new && change.put) change.put(metadata, change.key);
  Writer writer(path, metadata, {{"token_embd.weight", TensorType::F32, {3, 8}}});
  const std::vector<float> zeros(24);
  writer.write("token_embd.weight", 0, std::as_bytes(std::span(zeros)));
  writer.finish();
}

struct ModelCase {
  const char* name;
  Change change;
  const char* fault;
};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

const ModelCase kModels[] = {
    {"NoArchitecture", absent("general.architecture"), "has no general.architecture"},
    {"OtherArchitecture", text("general.architecture", "llama"),
     "general.architecture must be \"deepseek\" or \"glm4moe\" or \"qwen3moe\", found \"llama\""},
    {"ArchitectureOfNumber", integer("general.architecture", 1), "must be a string, found uint32"},
    {"Adapter", text("general.type", "adapter"), "general.type must be \"model\""},
    {"Split", integer("split.count", 3), "split.count must be 1: join the parts first"},
    {"NoLayers", absent("deepseek.block_count"), "has no deepseek.block_count"},
    {"LayersOfText", text("deepseek.block_count", "1"),
     "deepseek.block_count must be an integer, found string"},
    {"LayersInAnArray", integers("deepseek.block_count", {1}), "must be one value"},
    {"LayersTooMany", integer("deepseek.block_count", 4000000000), "num_hidden_layers must be"},
    {"HiddenZero", integer("deepseek.embedding_length", 0),
     "hidden_size must be an integer from 1"},
    {"HeadsZero", integer("deepseek.attention.head_count", 0), "has no deepseek.attention.key"},
    {"HeadsThatDoNotDivide", integer("deepseek.attention.head_count", 3),
     "has no deepseek.attention.key_length"},
    {"HeadsOfLayersDiffer", integers("deepseek.attention.head_count_kv", {1, 2}),
     "must be one number for all layers"},
    {"HeadWidthsDiffer", integer("deepseek.attention.value_length", 8),
     "deepseek.attention.value_length must be the width of a head (4), found 8"},
    {"RotatedInPart", integer("deepseek.rope.dimension_count", 2),
     "deepseek.rope.dimension_count must be the width of a head (4), found 2"},
    {"NoEpsilon", absent("deepseek.attention.layer_norm_rms_epsilon"),
     "rms_norm_eps must be a number from"},
    {"EpsilonNotANumber", number("deepseek.attention.layer_norm_rms_epsilon", std::nan("")),
     "must be a finite number"},
    {"RopeScalingYarn", text("deepseek.rope.scaling.type", "yarn"),
     "deepseek.rope.scaling.type must be \"none\" or \"linear\", found \"yarn\""},
    {"NoExperts", absent("deepseek.expert_count"), "has no deepseek.expert_count"},
    {"ExpertsUsedTooMany", integer("deepseek.expert_used_count", 5), "num_experts_per_tok must be"},
    {"GatesNormalised", boolean("deepseek.expert_weights_norm", true),
     "its metadata says otherwise"},
    {"GatingUnknown", integer("deepseek.expert_gating_func", 7),
     "deepseek.expert_gating_func must be 1 (softmax) or 2 (sigmoid), found 7"},
    {"KeyUnknown", integer("deepseek.attention.sliding_window", 8),
     "deepseek.attention.sliding_window must be absent"},
    {"VocabularyOfOtherSize", integer("deepseek.vocab_size", 4),
     "deepseek.vocab_size must be the rows of token_embd.weight (3), found 4"},
    {"BosBeyondTheVocabulary", integer("tokenizer.ggml.bos_token_id", 3), "bos_token_id"},
    {"OurConfigNotJson", text("dsmoe.config", "{"), "dsmoe.config"},
    {"OurConfigAList", text("dsmoe.config", "[]"), "dsmoe.config: expected a JSON object"},
    {"OurConfigOfText", text("dsmoe.config", R"({"seq_aux":"yes"})"),
     "dsmoe.config: seq_aux must be true or false"},
    {"OurConfigOfMathematics", text("dsmoe.config", R"({"sliding_window":8})"),
     "sliding_window must be null"},
};

class GgufModelFile : public testing::TestWithParam<ModelCase> {};

TEST_P(GgufModelFile, IsRefused) {
  const ScratchFolder folder;
  const std::string path = (folder / "x.gguf").string();
  write_model(path, GetParam().change);
  expect_refused([&] { model::read_config(path); }, std::filesystem::file_size(path),
                 GetParam().fault);
}
INSTANTIATE_TEST_SUITE_P(Malformed, GgufModelFile, testing::ValuesIn(kModels),
                         [](const auto& test) { return test.param.name; });

const ModelCase kTokenizers[] = {
    {"OtherKind", text("tokenizer.ggml.model", "llama"),
     "tokenizer.ggml.model must be \"gpt2\": byte pairs are the only kind that is read"},
    {"NoPre", absent("tokenizer.ggml.pre"), "tokenizer.ggml.pre must be one of gpt-2"},
    {"PreUnknown", text("tokenizer.ggml.pre", "tekken"), "found \"tekken\""},
    {"NoTokens", absent("tokenizer.ggml.tokens"), "has no tokenizer.ggml.tokens"},
    {"TokensOfNumbers", integers("tokenizer.ggml.tokens", {1, 2, 3}),
     "tokenizer.ggml.tokens must be an array of strings"},
    {"TokenNotText", texts("tokenizer.ggml.tokens", {"a", "\xff", "ab"}),
     "tokenizer.ggml.tokens[1] must be valid UTF-8"},
    {"TokenTwice", texts("tokenizer.ggml.tokens", {"a", "a", "ab"}),
     "tokenizer.ggml.tokens[1] must be a token of its own"},
    {"TypesTooFew", integers("tokenizer.ggml.token_type", {1}),
     "tokenizer.ggml.token_type must be a type for each of the 3 tokens, found 1"},
    {"TypeOfBytes", integers("tokenizer.ggml.token_type", {1, 6, 1}),
     "tokenizer.ggml.token_type[1] must be 1 to 5, found 6"},
    {"NoMerges", absent("tokenizer.ggml.merges"), "has no tokenizer.ggml.merges"},
    {"MergeOfOne", texts("tokenizer.ggml.merges", {"ab"}), "merges[0]: expected \"left right\""},
    {"MergeOfNoTokens", texts("tokenizer.ggml.merges", {"a c"}), "\"c\""},
    {"BosWithoutId", boolean("tokenizer.ggml.add_bos_token", true),
     "has no tokenizer.ggml.bos_token_id"},
    {"EosBeyondTheTokens", integer("tokenizer.ggml.eos_token_id", 3),
     "tokenizer.ggml.eos_token_id must be the id of a token, found 3"},
};

class GgufTokenizer : public testing::TestWithParam<ModelCase> {};

TEST_P(GgufTokenizer, IsRefused) {
  const ScratchFolder folder;
  const std::string path = (folder / "x.gguf").string();
  write_model(path, GetParam().change);
  expect_refused([&] { text::Tokenizer::from_file(path); }, std::filesystem::file_size(path),
                 GetParam().fault);
}
INSTANTIATE_TEST_SUITE_P(Malformed, GgufTokenizer, testing::ValuesIn(kTokenizers),
                         [](const auto& test) { return test.param.name; });

// What the changes above start from is read.
TEST(GgufModelFile, TheUnchangedOneIsRead) {
  const ScratchFolder folder;
  const std::string path = (folder / "x.gguf").string();
  write_model(path, absent(""));
  const model::ModelConfig config = model::read_config(path);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab_size, 3);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(text::Tokenizer::from_file(path).encode("abb"), (std::vector<int32_t>{2, 1}));
}

}  // namespace
}  // namespace dsmoe::malformed

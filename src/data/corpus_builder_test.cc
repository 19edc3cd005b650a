// From files to shards: encoding, caching by content, atomicity, progress.
#include "data/corpus_builder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/scratch_folder.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::byte_encoder;
using testing::decode;
using testing::error_of;
using testing::marks_of;
using testing::read_file;
using testing::tokens_of;
using testing::write_file;

TEST(EncodeDocument, AddsBosAndEos) {
  const TokenDocument out = encode_document({{{.text = "hi"}}}, byte_encoder(), 3);
  EXPECT_EQ(decode(out.tokens), "<hi>");
  EXPECT_TRUE(out.counted.empty());
  EXPECT_EQ(out.source, 3);
  Encoder without_bos = byte_encoder();
  without_bos.bos.reset();
  EXPECT_EQ(decode(encode_document({{{.text = "hi"}}}, without_bos, 0).tokens), "hi>");
}

TEST(EncodeDocument, CountsTheCompletionAndItsEnd) {
  const TokenDocument out =
      encode_document({{{.text = "ab", .counted = false}, {.text = "c"}}}, byte_encoder(), 0);
  EXPECT_EQ(decode(out.tokens), "<abc>");
  EXPECT_EQ(out.counted, (std::vector<uint8_t>{1, 0, 0, 1, 1}));
}

TEST(EncodeDocument, AssistantTurnsEndWithOneCountedEos) {
  const DocumentPart user{.text = "u", .counted = false};
  const DocumentPart answer{.text = "a", .counted = true, .ends_turn = true};
  const TokenDocument two = encode_document({{user, answer, user, answer}}, byte_encoder(), 0);
  EXPECT_EQ(decode(two.tokens), "<ua>ua>");
  EXPECT_EQ(two.counted, (std::vector<uint8_t>{1, 0, 1, 1, 0, 1, 1}));
  const TokenDocument open = encode_document({{answer, user}}, byte_encoder(), 0);
  EXPECT_EQ(decode(open.tokens), "<a>u>");
  EXPECT_EQ(open.counted, (std::vector<uint8_t>{1, 1, 1, 0, 0}));
}

TEST(EncodeDocument, DoesNotDoubleWhatATemplateWrote) {
  Encoder encoder = byte_encoder();
  encoder.encode_rendered = [plain = encoder.encode](std::string_view text) {
    std::vector<int32_t> ids = plain(text);
    for (int32_t& id : ids) id = id == '<' + 2 ? 0 : id == '>' + 2 ? 1 : id;
    return ids;
  };
  const DocumentPart user{.text = "<u", .counted = false, .rendered = true};
  const DocumentPart answer{.text = "a>", .ends_turn = true, .rendered = true};
  EXPECT_EQ(decode(encode_document({{user, answer}}, encoder, 0).tokens), "<ua>");
  const DocumentPart newline{.text = "a>\n", .ends_turn = true, .rendered = true};
  EXPECT_EQ(decode(encode_document({{user, newline, user}}, encoder, 0).tokens), "<ua>\n<u>");
  // In plain text the same characters are only characters.
  EXPECT_EQ(encode_document({{{.text = "a>"}}}, encoder, 0).tokens,
            (std::vector<int32_t>{0, 'a' + 2, '>' + 2, 1}));
}

class BuildCorpus : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::quiet);
    write_file(folder_ / "a.txt", "one<|endoftext|>two<|endoftext|>");
    write_file(folder_ / "b.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n");
    options_ = {.inputs = {{.path = folder_ / "a.txt"}, {.path = folder_ / "b.jsonl"}},
                .cache_folder = folder_ / "cache" / "deep"};
  }
  void TearDown() override { set_log_level(LogLevel::info); }

  std::set<std::string> cache_entries() const {
    std::set<std::string> names;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(options_.cache_folder, missing)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".lock")) names.insert(name);
    }
    return names;
  }

  ScratchFolder folder_;
  CorpusOptions options_;
};

TEST_F(BuildCorpus, KeepsDocumentsMasksAndSources) {
  const BuiltCorpus built = build_corpus(options_, byte_encoder());
  EXPECT_FALSE(built.reused);
  const ShardCorpus& corpus = built.corpus;
  ASSERT_EQ(corpus.num_documents(), 3);
  EXPECT_EQ(decode(tokens_of(corpus, 0)), "<one>");
  EXPECT_EQ(decode(tokens_of(corpus, 1)), "<two>");
  EXPECT_EQ(decode(tokens_of(corpus, 2)), "<pc>");
  EXPECT_EQ(marks_of(corpus, 2), "1011");
  EXPECT_EQ(corpus.sources(), (std::vector<std::string>{"a.txt", "b.jsonl"}));
  EXPECT_EQ(corpus.source(1), 0);
  EXPECT_EQ(corpus.source(2), 1);
  EXPECT_EQ(cache_entries(), std::set<std::string>{built.folder.filename().string()});
}

TEST_F(BuildCorpus, ASecondRunReusesTheFirst) {
  int encoded = 0;
  Encoder counting = byte_encoder();
  counting.encode = [&, plain = counting.encode](std::string_view text) {
    ++encoded;
    return plain(text);
  };
  build_corpus(options_, counting);
  const int first = encoded;
  EXPECT_GT(first, 0);
  const BuiltCorpus again = build_corpus(options_, counting);
  EXPECT_TRUE(again.reused);
  EXPECT_EQ(encoded, first);
  EXPECT_EQ(decode(tokens_of(again.corpus, 1)), "<two>");
}

// Its tokens would lie under the key of what the file was before.
TEST_F(BuildCorpus, RefusesAFileThatGrowsMeanwhile) {
  Encoder writing = byte_encoder();
  writing.encode = [&, plain = writing.encode](std::string_view text) {
    write_file(folder_ / "b.jsonl", "{\"prompt\": \"p\", \"completion\": \"another\"}\n");
    return plain(text);
  };
  EXPECT_NE(error_of([&] { build_corpus(options_, writing); }).find("b.jsonl was changed"),
            std::string::npos);
  EXPECT_TRUE(cache_entries().empty());
}

TEST_F(BuildCorpus, WhateverDecidesTheTokensDecidesTheKey) {
  const auto key = [&](const CorpusOptions& options, const Encoder& encoder) {
    return build_corpus(options, encoder).corpus.corpus_key();
  };
  std::set<uint64_t> keys = {key(options_, byte_encoder())};
  Encoder other_hash = byte_encoder();
  other_hash.hash = 43;
  keys.insert(key(options_, other_hash));
  Encoder no_bos = byte_encoder();
  no_bos.bos.reset();
  keys.insert(key(options_, no_bos));
  CorpusOptions changed = options_;
  changed.reader.separator = "w";
  keys.insert(key(changed, byte_encoder()));
  changed = options_;
  changed.inputs[0].domain = "prose";
  keys.insert(key(changed, byte_encoder()));
  changed = options_;
  changed.inputs[1].format = InputFormat::text;
  keys.insert(key(changed, byte_encoder()));
  changed = options_;
  std::swap(changed.inputs[0], changed.inputs[1]);
  keys.insert(key(changed, byte_encoder()));
  changed = options_;
  changed.chat_template_hash = 1;
  keys.insert(key(changed, byte_encoder()));
  write_file(folder_ / "a.txt", "one<|endoftext|>tvo<|endoftext|>");
  keys.insert(key(options_, byte_encoder()));
  EXPECT_EQ(keys.size(), 9u);
}

TEST_F(BuildCorpus, TheSameContentElsewhereIsTheSameCorpus) {
  const uint64_t key = build_corpus(options_, byte_encoder()).corpus.corpus_key();
  std::filesystem::create_directory(folder_ / "moved");
  for (CorpusInput& input : options_.inputs) {
    std::filesystem::rename(input.path, folder_ / "moved" / input.path.filename());
    input.path = folder_ / "moved" / input.path.filename();
  }
  const BuiltCorpus moved = build_corpus(options_, byte_encoder());
  EXPECT_TRUE(moved.reused);
  EXPECT_EQ(moved.corpus.corpus_key(), key);
}

TEST_F(BuildCorpus, RenamedFilesAreTheSameCorpus) {
  const BuiltCorpus first = build_corpus(options_, byte_encoder());
  std::filesystem::rename(folder_ / "a.txt", folder_ / "renamed.txt");
  options_.inputs[0].path = folder_ / "renamed.txt";
  const BuiltCorpus renamed = build_corpus(options_, byte_encoder());
  EXPECT_TRUE(renamed.reused);
  EXPECT_EQ(renamed.corpus.corpus_key(), first.corpus.corpus_key());
  EXPECT_NE(renamed.former_key, first.former_key);
  EXPECT_EQ(renamed.corpus.sources(), (std::vector<std::string>{"renamed.txt", "b.jsonl"}));
  // Two files of one name and content are two sources; one file twice is one.
  std::filesystem::copy_file(folder_ / "renamed.txt", folder_ / "copy.txt");
  options_.inputs = {{.path = folder_ / "renamed.txt"}, {.path = folder_ / "copy.txt"}};
  const uint64_t two = build_corpus(options_, byte_encoder()).corpus.corpus_key();
  options_.inputs[1].path = folder_ / "renamed.txt";
  EXPECT_NE(build_corpus(options_, byte_encoder()).corpus.corpus_key(), two);
}

TEST_F(BuildCorpus, DamagedAndPartialCachesAreBuiltAgain) {
  const std::filesystem::path folder = build_corpus(options_, byte_encoder()).folder;
  const std::string good = read_file(folder / "00000.tokens");
  std::string flipped = good;
  flipped[192] ^= 1;  // the first token
  for (const std::string& bad : {flipped, good.substr(0, 100), std::string()}) {
    write_file(folder / "00000.tokens", bad);
    const BuiltCorpus built = build_corpus(options_, byte_encoder());
    EXPECT_FALSE(built.reused);
    EXPECT_EQ(read_file(folder / "00000.tokens"), good);
  }
  std::filesystem::remove(folder / "00000.tokens");
  EXPECT_FALSE(build_corpus(options_, byte_encoder()).reused);
  // What killed builders leave behind, also of another corpus.
  std::filesystem::rename(folder,
                          folder.parent_path() / ("." + folder.filename().string() + ".tmp-1-1"));
  std::filesystem::create_directory(folder.parent_path() / ".tokens-0000000000000000.tmp-1-1");
  EXPECT_FALSE(build_corpus(options_, byte_encoder()).reused);
  EXPECT_EQ(cache_entries(), std::set<std::string>{folder.filename().string()});
}

TEST_F(BuildCorpus, AnErrorLeavesNothingBehind) {
  write_file(folder_ / "b.jsonl", "{\"text\": \"fine\"}\n{\"wrong\": 1}\n");
  const std::string error = error_of([&] { build_corpus(options_, byte_encoder()); });
  EXPECT_NE(error.find("line 2: it has \"wrong\""), std::string::npos) << error;
  EXPECT_TRUE(cache_entries().empty());
  options_.progress = [](const BuildProgress&) { fail(ErrorKind::resource, "stop here"); };
  EXPECT_EQ(error_of([&] { build_corpus(options_, byte_encoder()); }), "stop here");
  EXPECT_TRUE(cache_entries().empty());
}

TEST_F(BuildCorpus, NamedKeysAreAnotherCorpus) {
  write_file(folder_ / "b.jsonl", "{\"text\": \"one\", \"body\": \"two\"}\n");
  const uint64_t usual = build_corpus(options_, byte_encoder()).corpus.corpus_key();
  options_.reader.keys.text = "body";
  const BuiltCorpus named = build_corpus(options_, byte_encoder());
  EXPECT_NE(named.corpus.corpus_key(), usual);
  const int64_t last = named.corpus.num_documents() - 1;
  EXPECT_EQ(decode(tokens_of(named.corpus, last)), "<two>");
}

TEST_F(BuildCorpus, LabelsJoinFilesWithoutBeingInTheKey) {
  for (CorpusInput& input : options_.inputs) input.label = "folder";
  const BuiltCorpus built = build_corpus(options_, byte_encoder());
  EXPECT_EQ(built.corpus.sources(), std::vector<std::string>{"folder"});
  ASSERT_EQ(built.files.size(), 2u);
  EXPECT_EQ(built.files[1].source, "folder");
  EXPECT_EQ(built.files[1].bytes, std::filesystem::file_size(options_.inputs[1].path));
  for (CorpusInput& input : options_.inputs) input.label = "renamed";
  const BuiltCorpus renamed = build_corpus(options_, byte_encoder());
  EXPECT_TRUE(renamed.reused);
  EXPECT_EQ(renamed.corpus.corpus_key(), built.corpus.corpus_key());
  EXPECT_EQ(renamed.corpus.sources(), std::vector<std::string>{"renamed"});
}

TEST_F(BuildCorpus, RefusesNothing) {
  write_file(folder_ / "a.txt", " \n");
  options_.inputs.pop_back();
  EXPECT_NE(error_of([&] { build_corpus(options_, byte_encoder()); }).find("no document"),
            std::string::npos);
  options_.inputs.clear();
  EXPECT_NE(error_of([&] { build_corpus(options_, byte_encoder()); }).find("no data files"),
            std::string::npos);
}

TEST_F(BuildCorpus, CanBeGivenUpWhileFilesAreHashed) {
  options_.poll = [] { fail(ErrorKind::resource, "stop here"); };
  EXPECT_EQ(error_of([&] { build_corpus(options_, byte_encoder()); }), "stop here");
  EXPECT_TRUE(cache_entries().empty());
}

TEST_F(BuildCorpus, CanBeGivenUpWhileAnotherBuilds) {
  const std::filesystem::path built = build_corpus(options_, byte_encoder()).folder;
  const std::string lock =
      (built.parent_path() / ("." + built.filename().string() + ".lock")).string();
  const int descriptor = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  int calls = 0;
  options_.poll = [&] {
    if (++calls == 10) fail(ErrorKind::resource, "stop here");
  };
  EXPECT_EQ(error_of([&] { build_corpus(options_, byte_encoder()); }), "stop here");
  ::close(descriptor);
  EXPECT_TRUE(build_corpus(options_, byte_encoder()).reused);
}

TEST_F(BuildCorpus, ReportsProgress) {
  std::vector<BuildProgress> seen;
  options_.progress = [&](const BuildProgress& progress) { seen.push_back(progress); };
  build_corpus(options_, byte_encoder());
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
  EXPECT_EQ(seen.back().num_documents, 3u);
  EXPECT_EQ(seen.back().num_tokens, 14u);
}

TEST_F(BuildCorpus, FilesOfOneNameAreToldApartAndDomainsAreShared) {
  std::filesystem::create_directory(folder_ / "x");
  write_file(folder_ / "x" / "a.txt", "three");
  options_.inputs = {{.path = folder_ / "a.txt"},
                     {.path = folder_ / "x" / "a.txt"},
                     {.path = folder_ / "b.jsonl", .domain = "d"},
                     {.path = folder_ / "b.jsonl", .domain = "d"}};
  const BuiltCorpus built = build_corpus(options_, byte_encoder());
  EXPECT_EQ(built.corpus.sources(),
            (std::vector<std::string>{(folder_ / "a.txt").string(),
                                      (folder_ / "x" / "a.txt").string(), "d"}));
  EXPECT_EQ(built.corpus.source(4), 2);
}

TEST_F(BuildCorpus, ConcurrentBuildersAgree) {
  std::vector<std::thread> threads;
  std::vector<int> lengths(4, 0);
  for (size_t i = 0; i < lengths.size(); ++i) {
    threads.emplace_back([&, i] {
      lengths[i] = static_cast<int>(build_corpus(options_, byte_encoder()).corpus.num_tokens());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lengths, std::vector<int>(4, 14));
  EXPECT_EQ(cache_entries().size(), 1u);
}

}  // namespace
}  // namespace dsmoe::data

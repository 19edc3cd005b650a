// Token shards: round trips, sets of shards, and every kind of damage.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/scratch_folder.h"
#include "data/content_hash.h"
#include "data/shard_corpus.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;
using testing::marks_of;
using testing::read_file;
using testing::tokens_of;
using testing::write_file;

std::vector<TokenDocument> some_documents(int64_t vocab_size, bool masked) {
  const Rng rng{.seed = 3, .purpose = RngPurpose::test, .stream = 0};
  std::vector<TokenDocument> documents;
  for (uint64_t d = 0; d < 40; ++d) {
    TokenDocument document{.source = static_cast<int32_t>(d % 3)};
    for (uint64_t i = 0; i < 1 + rng.below(d, 30); ++i) {
      document.tokens.push_back(
          static_cast<int32_t>(rng.below(1000 * d + i, static_cast<uint64_t>(vocab_size))));
      if (masked && d % 2 == 1) document.counted.push_back(i % 3 == 0 ? 1 : 0);
    }
    documents.push_back(document);
  }
  return documents;
}

ShardSetOptions set_options(const ScratchFolder& folder, int64_t vocab_size) {
  return {.folder = folder.path(),
          .vocab_size = vocab_size,
          .tokenizer_hash = 11,
          .corpus_key = 22,
          .sources = {"novels.txt", "", "\xC3\xA9t\xC3\xA9"}};
}

void write_set(ShardSetOptions options, const std::vector<TokenDocument>& documents) {
  ShardSetWriter writer(std::move(options));
  for (const TokenDocument& document : documents) writer.add(document);
  writer.finish();
}

TEST(Shards, RoundTrip) {
  for (const int64_t vocab_size : {300, 65536, 65537, 102400}) {
    for (const bool masked : {false, true}) {
      const ScratchFolder folder;
      const auto documents = some_documents(vocab_size, masked);
      write_set(set_options(folder, vocab_size), documents);
      const ShardCorpus corpus(folder.path(), ShardCheck::everything);
      ASSERT_EQ(corpus.num_documents(), 40);
      EXPECT_EQ(corpus.vocab_size(), vocab_size);
      EXPECT_EQ(corpus.has_mask(), masked);
      EXPECT_EQ(corpus.tokenizer_hash(), 11u);
      EXPECT_EQ(corpus.corpus_key(), 22u);
      EXPECT_EQ(corpus.sources(),
                (std::vector<std::string>{"novels.txt", "", "\xC3\xA9t\xC3\xA9"}));
      int64_t tokens = 0;
      for (int64_t d = 0; d < 40; ++d) {
        const TokenDocument& document = documents[static_cast<size_t>(d)];
        tokens += static_cast<int64_t>(document.tokens.size());
        EXPECT_EQ(tokens_of(corpus, d), document.tokens);
        EXPECT_EQ(corpus.source(d), document.source);
        EXPECT_EQ(corpus.content_hash(d), token_hash(document.tokens));
        std::string marks(document.tokens.size(), '1');
        for (size_t i = 0; i < document.counted.size(); ++i)
          marks[i] = document.counted[i] != 0 ? '1' : '0';
        EXPECT_EQ(marks_of(corpus, d), marks);
      }
      EXPECT_EQ(corpus.num_tokens(), tokens);
      const uint64_t id_bytes = vocab_size <= 65536 ? 2 : 4;
      EXPECT_LT(read_file(folder / "00000.tokens").size(),
                144 + id_bytes * static_cast<uint64_t>(tokens) + 1300);
    }
  }
}

// Within the page in which the file ends, a cut gives zeros and no fault.
TEST(Shards, ACutWhileInUseIsNamed) {
  const ScratchFolder folder;
  write_set(set_options(folder, 300), some_documents(300, true));
  const std::filesystem::path file = folder / "00000.tokens";
  const auto size = std::filesystem::file_size(file);
  for (const std::uintmax_t left : {size - 1, size / 2, std::uintmax_t{1}}) {
    const std::string bytes = read_file(file);
    const ShardCorpus corpus(folder.path(), ShardCheck::everything);
    std::filesystem::resize_file(file, left);
    std::vector<int32_t> ids(1);
    std::vector<uint8_t> marks(1);
    for (const std::string& message :
         {error_of([&] { corpus.copy_tokens(1, 0, ids); }),
          error_of([&] { corpus.copy_counted(1, 0, marks); }),
          left < size / 2 ? error_of([&] { corpus.length(1); })
                          : std::string("it had ") + std::to_string(size)}) {
      EXPECT_NE(message.find(fmt::format("it had {}", size)), std::string::npos) << message;
    }
    write_file(file, bytes);
  }
}

TEST(Shards, ASetOfManyEqualsOne) {
  const ScratchFolder one, many;
  const auto documents = some_documents(500, true);
  write_set(set_options(one, 500), documents);
  ShardSetOptions small = set_options(many, 500);
  small.max_shard_tokens = 100;
  small.max_shard_documents = 7;
  write_set(small, documents);
  const ShardCorpus a(one.path(), ShardCheck::everything), b(many.path(), ShardCheck::everything);
  EXPECT_EQ(a.num_shards(), 1u);
  EXPECT_GE(b.num_shards(), 6u);
  ASSERT_EQ(a.num_documents(), b.num_documents());
  EXPECT_EQ(a.num_tokens(), b.num_tokens());
  EXPECT_EQ(a.num_counted(), b.num_counted());
  for (int64_t d = 0; d < a.num_documents(); ++d) {
    EXPECT_EQ(tokens_of(a, d), tokens_of(b, d));
    EXPECT_EQ(marks_of(a, d), marks_of(b, d));
    EXPECT_EQ(a.source(d), b.source(d));
  }
}

TEST(Shards, EqualDocumentsGiveEqualBytes) {
  const ScratchFolder a, b;
  write_set(set_options(a, 500), some_documents(500, true));
  write_set(set_options(b, 500), some_documents(500, true));
  EXPECT_EQ(read_file(a / "00000.tokens"), read_file(b / "00000.tokens"));
}

TEST(Shards, SetsThatAreNotWholeAreRefused) {
  const ScratchFolder folder, other;
  ShardSetOptions options = set_options(folder, 500);
  options.max_shard_documents = 10;
  write_set(options, some_documents(500, false));
  options.folder = other.path();
  options.corpus_key = 23;
  write_set(options, some_documents(500, false));
  const auto error = [&] {
    return error_of([&] { ShardCorpus(folder.path(), ShardCheck::everything); });
  };
  ASSERT_EQ(error(), "");
  const std::string second = read_file(folder / "00001.tokens");
  std::filesystem::remove(folder / "00001.tokens");
  EXPECT_NE(error().find("00001.tokens"), std::string::npos);
  write_file(folder / "00001.tokens", read_file(folder / "00002.tokens"));
  EXPECT_NE(error().find("another set"), std::string::npos);
  write_file(folder / "00001.tokens", read_file(other / "00001.tokens"));
  EXPECT_NE(error().find("another set"), std::string::npos);
  std::filesystem::remove(folder / "00001.tokens");
  std::filesystem::create_directory(folder / "00001.tokens");
  EXPECT_NE(error().find("00001.tokens"), std::string::npos);
}

TEST(Shards, WriterRefusesBrokenDocuments) {
  const ScratchFolder folder;
  ShardSetWriter writer(set_options(folder, 500));
  for (const TokenDocument& bad :
       {TokenDocument{}, TokenDocument{.tokens = {500}}, TokenDocument{.tokens = {-1}},
        TokenDocument{.tokens = {1}, .source = 3},
        TokenDocument{.tokens = {1, 2}, .counted = {1}}}) {
    EXPECT_NE(error_of([&] { writer.add(bad); }), "");
  }
}

// ---- damage ----

class DamagedShard : public ::testing::Test {
 protected:
  void SetUp() override {
    write_set(set_options(folder_, 500), some_documents(500, true));
    good_ = read_file(folder_ / "00000.tokens");
    ASSERT_EQ(error(good_), "");
  }

  static std::string error(std::string_view bytes, ShardCheck check = ShardCheck::everything) {
    return error_of([&] { ShardView(std::as_bytes(std::span(bytes)), "s.tokens", check); });
  }

  // The file with a changed header whose checksum is right again.
  std::string with_header(const std::function<void(ShardHeader&)>& change) const {
    ShardHeader header;
    std::memcpy(&header, good_.data(), sizeof header);
    change(header);
    header.header_hash = shard_header_hash(header);
    std::string bytes = good_;
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
  }

  ScratchFolder folder_;
  std::string good_;
};

TEST_F(DamagedShard, EveryTruncationIsRefused) {
  for (size_t size = 0; size < good_.size(); size += size < 400 ? 1 : 13) {
    EXPECT_NE(error(std::string_view(good_).substr(0, size), ShardCheck::structure), "") << size;
  }
  EXPECT_NE(error(good_ + "x", ShardCheck::structure), "");
}

TEST_F(DamagedShard, EveryFlippedBitOutsidePaddingIsFound) {
  ShardHeader header;
  std::memcpy(&header, good_.data(), sizeof header);
  const ShardLayout layout = shard_layout(header, "s");
  for (size_t i = 0; i < good_.size(); ++i) {
    const bool in_section =
        i < sizeof header || (i >= layout.tokens && i < layout.tokens + layout.tokens_bytes) ||
        (i >= layout.mask && i < layout.mask + layout.mask_bytes) ||
        (i >= layout.documents && i < layout.documents + layout.documents_bytes) ||
        i >= layout.sources;
    if (!in_section) continue;
    std::string bytes = good_;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    EXPECT_NE(error(bytes), "") << i;
  }
}

TEST_F(DamagedShard, LyingHeadersAreRefusedEvenWithARightChecksum) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  struct Case {
    const char* name;
    std::function<void(ShardHeader&)> change;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"magic", [](ShardHeader& h) { h.magic[0] = 'X'; }, "not a token shard"},
      {"version 0", [](ShardHeader& h) { h.version = 0; }, "version 0"},
      {"version 2", [](ShardHeader& h) { h.version = 2; }, "version 2"},
      {"token bytes 4", [](ShardHeader& h) { h.token_bytes = 4; }, "bytes per token"},
      {"token bytes 0", [](ShardHeader& h) { h.token_bytes = 0; }, "bytes per token"},
      {"token bytes huge", [](ShardHeader& h) { h.token_bytes = ~0u; }, "bytes per token"},
      {"vocab 0", [](ShardHeader& h) { h.vocab_size = 0; }, "vocabulary"},
      {"vocab huge", [](ShardHeader& h) { h.vocab_size = kHuge; }, "vocabulary"},
      {"vocab needs 4 bytes", [](ShardHeader& h) { h.vocab_size = 70000; }, "bytes per token"},
      {"file bytes", [](ShardHeader& h) { h.file_bytes += 1; }, "bytes"},
      {"tokens + 1", [](ShardHeader& h) { h.num_tokens += 1; }, "damaged"},
      {"tokens - 1", [](ShardHeader& h) { h.num_tokens -= 1; }, "damaged"},
      {"tokens huge", [](ShardHeader& h) { h.num_tokens = kHuge; }, "impossibly large"},
      {"tokens 2^63", [](ShardHeader& h) { h.num_tokens = uint64_t{1} << 63; }, "impossibly large"},
      {"counted more than tokens", [](ShardHeader& h) { h.num_counted = h.num_tokens + 1; },
       "counted"},
      {"counted wrong", [](ShardHeader& h) { h.num_counted -= 1; }, "mask bits"},
      {"mask away", [](ShardHeader& h) { h.has_mask = 0; }, "counted"},
      {"mask 2", [](ShardHeader& h) { h.has_mask = 2; }, "flags"},
      {"last 2", [](ShardHeader& h) { h.is_last = 2; }, "flags"},
      {"reserved", [](ShardHeader& h) { h.reserved = 1; }, "flags"},
      {"documents + 1", [](ShardHeader& h) { h.num_documents += 1; }, "damaged"},
      {"documents 0", [](ShardHeader& h) { h.num_documents = 0; }, "damaged"},
      {"documents huge", [](ShardHeader& h) { h.num_documents = kHuge; }, "impossibly large"},
      {"documents 2^60", [](ShardHeader& h) { h.num_documents = uint64_t{1} << 60; },
       "impossibly large"},
      {"sources + 1", [](ShardHeader& h) { h.num_sources += 1; }, "source names end"},
      {"sources 0", [](ShardHeader& h) { h.num_sources = 0; }, "after the last source name"},
      {"sources huge", [](ShardHeader& h) { h.num_sources = kHuge; }, "source names end"},
      {"source bytes + 1", [](ShardHeader& h) { h.sources_bytes += 1; }, "bytes"},
      {"source bytes huge", [](ShardHeader& h) { h.sources_bytes = kHuge; }, "impossibly large"},
      {"tokens hash", [](ShardHeader& h) { h.tokens_hash ^= 1; }, "tokens do not match"},
      {"mask hash", [](ShardHeader& h) { h.mask_hash ^= 1; }, "mask bits do not match"},
      {"documents hash", [](ShardHeader& h) { h.documents_hash ^= 1; }, "documents do not match"},
      {"sources hash", [](ShardHeader& h) { h.sources_hash ^= 1; }, "source names do not match"},
  };
  for (const auto& [name, change, expected] : cases) {
    const std::string message = error(with_header(change));
    EXPECT_NE(message.find(expected), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find("s.tokens"), std::string::npos) << name;
  }
  EXPECT_EQ(error(with_header([](ShardHeader&) {})), "");
}

TEST_F(DamagedShard, LyingTablesAreRefusedEvenWithRightChecksums) {
  ShardHeader header;
  std::memcpy(&header, good_.data(), sizeof header);
  const ShardLayout layout = shard_layout(header, "s");
  const auto with_document = [&](size_t idx, ShardDocument entry) {
    std::string bytes = good_;
    std::memcpy(bytes.data() + layout.documents + idx * sizeof entry, &entry, sizeof entry);
    const uint64_t hash =
        content_hash(std::string_view(bytes).substr(layout.documents, layout.documents_bytes));
    good_.swap(bytes);
    std::string sealed = with_header([&](ShardHeader& h) { h.documents_hash = hash; });
    good_.swap(bytes);
    return sealed;
  };
  EXPECT_NE(error(with_document(0, {.end = 0})).find("document 0 ends"), std::string::npos);
  EXPECT_NE(error(with_document(1, {.end = ~uint64_t{0}})).find("document 2 ends"),
            std::string::npos);
  EXPECT_NE(error(with_document(39, {.end = header.num_tokens + 1})).find("the documents hold"),
            std::string::npos);
  EXPECT_NE(error(with_document(0, {.end = 1, .source = 3})).find("source 3 of 3"),
            std::string::npos);
}

TEST_F(DamagedShard, AnIdOutsideTheVocabularyIsAnErrorNotAnIndex) {
  std::string bytes = good_;
  bytes[192] = bytes[193] = '\xFF';
  const ShardView view(std::as_bytes(std::span(bytes)), "s.tokens", ShardCheck::structure);
  std::vector<int32_t> ids(1);
  EXPECT_NE(error_of([&] { view.copy_tokens(0, ids); }).find("token id 65535"), std::string::npos);
  EXPECT_NE(error_of([&] { view.copy_tokens(view.header().num_tokens, ids); }), "");
}

}  // namespace
}  // namespace dsmoe::data

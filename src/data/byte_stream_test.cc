// Files, zstd frames whole and broken, and formats that are refused by name.
#include "data/byte_stream.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/scratch_folder.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;
using testing::write_file;

std::string compress(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string read_all(ByteStream& stream, size_t chunk) {
  std::string text, buffer(chunk, '\0');
  while (const size_t count = stream.read(buffer)) text.append(buffer, 0, count);
  return text;
}

std::string decompress(std::string_view bytes, size_t chunk = 1000) {
  const auto stream = zstd_stream(std::make_unique<MemoryStream>(bytes), "x.zst");
  return read_all(*stream, chunk);
}

// Random enough not to vanish under compression.
std::string noisy_text(size_t size) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < size)
    text += static_cast<char>('a' + ((state = state * 1664525 + 1013904223) >> 28));
  return text;
}

TEST(ByteStream, ReadsAFile) {
  const ScratchFolder folder;
  const std::string text = noisy_text(100000);
  write_file(folder / "a.txt", text);
  const auto stream = open_text_bytes(folder / "a.txt");
  EXPECT_EQ(read_all(*stream, 777), text);
  EXPECT_EQ(stream->file_bytes_read(), text.size());
}

TEST(ByteStream, AFileThatIsCutMeanwhileIsNoShortFile) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", std::string(100, 'x'));
  FileStream file(folder / "a.txt");
  std::string buffer(10, '\0');
  EXPECT_EQ(file.read(buffer), 10u);
  std::filesystem::resize_file(folder / "a.txt", 15);
  EXPECT_EQ(file.read(buffer), 5u);
  EXPECT_NE(error_of([&] { file.read(buffer); }).find("ends at byte 15, it had 100 bytes"),
            std::string::npos);
}

TEST(ByteStream, ReadsZstdByNameAndByContent) {
  const ScratchFolder folder;
  const std::string text = noisy_text(1000000);
  for (const char* name : {"a.txt.zst", "a.txt"}) {
    write_file(folder / name, compress(text));
    const auto stream = open_text_bytes(folder / name);
    EXPECT_EQ(read_all(*stream, 4096), text) << name;
    EXPECT_LT(stream->file_bytes_read(), text.size());
  }
}

TEST(ByteStream, ReadsSeveralAndEmptyFrames) {
  EXPECT_EQ(decompress(compress("one") + compress("") + compress("two"), 2), "onetwo");
  EXPECT_EQ(decompress(compress("")), "");
}

TEST(ByteStream, RefusesEveryTruncation) {
  const std::string bytes = compress(noisy_text(5000));
  for (size_t size = 0; size < bytes.size(); size += size < 40 ? 1 : 97) {
    const std::string error =
        error_of([&] { decompress(std::string_view(bytes).substr(0, size)); });
    EXPECT_NE(error.find("x.zst"), std::string::npos) << size;
    EXPECT_NE(error.find("truncated"), std::string::npos) << size << ": " << error;
  }
}

TEST(ByteStream, RefusesDamage) {
  std::string bytes = compress(noisy_text(5000));
  bytes[0] ^= 1;
  EXPECT_NE(error_of([&] { decompress(bytes); }).find("damaged near compressed byte"),
            std::string::npos);
  EXPECT_NE(error_of([&] { decompress(compress("ok") + "garbage after it"); }).find("damaged"),
            std::string::npos);
}

// zstd --long=31: nothing is wrong with the file.
TEST(ByteStream, RefusesALargeWindowByName) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> encoder(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  ASSERT_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_windowLog, 28)));
  ASSERT_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_contentSizeFlag, 0)));
  std::string text = "text", out(1000, '\0');
  ZSTD_inBuffer input{text.data(), text.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  // In two steps, so that the encoder does not choose a window by the length.
  ZSTD_compressStream2(encoder.get(), &output, &input, ZSTD_e_flush);
  ASSERT_EQ(ZSTD_compressStream2(encoder.get(), &output, &input, ZSTD_e_end), 0u);
  const std::string error =
      error_of([&] { decompress(std::string_view(out).substr(0, output.pos)); });
  EXPECT_NE(error.find("--long"), std::string::npos) << error;
  EXPECT_EQ(error.find("damaged"), std::string::npos) << error;
}

TEST(ByteStream, RefusesOtherFormatsByName) {
  const ScratchFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x1f\x8b\x08 rest", "gzip"}, {"\xfd\x37zXZ rest", "xz"}, {"BZh9 rest", "bzip2"},
      {"PK\x03\x04 rest", "zip"},    {"PAR1 rest", "Parquet"},   {"\xff\xfeh", "UTF-16"},
      {"\xfe\xffh", "UTF-16"},
  };
  for (const auto& [bytes, name] : cases) {
    write_file(folder / "f", bytes);
    EXPECT_NE(error_of([&] { open_text_bytes(folder / "f"); }).find(name), std::string::npos)
        << name;
  }
}

TEST(ByteStream, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  EXPECT_NE(error_of([&] { open_text_bytes(folder.path()); }).find("a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { open_text_bytes(folder / "missing"); }).find("cannot open"),
            std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { open_text_bytes(folder / "pipe"); }).find("regular"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::data

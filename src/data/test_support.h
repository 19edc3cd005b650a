// What the tests of this folder share: file writing, a tokenizer of bytes, errors.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/corpus_builder.h"

namespace dsmoe::data::testing {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The message of the Error that `f` throws; "" when it throws none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_FALSE(std::string_view(error.what()).empty());
    return error.what();
  }
  return "";
}

// Byte b is token b + 2; bos 0, eos 1.
inline Encoder byte_encoder() {
  return {.encode =
              [](std::string_view text) {
                std::vector<int32_t> ids;
                for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 2);
                return ids;
              },
          .vocab_size = 258,
          .bos = 0,
          .eos = 1,
          .hash = 42};
}

inline std::string decode(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids)
    text += id == 0 ? "<" : id == 1 ? ">" : std::string(1, static_cast<char>(id - 2));
  return text;
}

inline std::vector<int32_t> tokens_of(const TokenCorpus& corpus, int64_t document) {
  std::vector<int32_t> ids(static_cast<size_t>(corpus.length(document)));
  corpus.copy_tokens(document, 0, ids);
  return ids;
}

// "0011": the marks of a document.
inline std::string marks_of(const TokenCorpus& corpus, int64_t document) {
  std::vector<uint8_t> marks(static_cast<size_t>(corpus.length(document)));
  corpus.copy_counted(document, 0, marks);
  std::string text;
  for (const uint8_t mark : marks) text += mark != 0 ? '1' : '0';
  return text;
}

}  // namespace dsmoe::data::testing

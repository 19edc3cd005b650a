// Counts the pre-tokens of a corpus, in parallel, with the same result for any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace dsmoe::text {

class WordCounts {
 public:
  // `delimiters` (special tokens) are cut out of the text: they are never part of a word.
  explicit WordCounts(const std::vector<std::string>& delimiters);

  // Any bytes; those that are no UTF-8 separate words and are not counted. Words of more than 4,096
  // bytes are counted in pieces. `num_inserted` of the
  // bytes are delimiters that the caller put between texts: num_bytes() leaves them out.
  void add_text(std::string_view text, ThreadPool& pool, std::size_t num_inserted = 0);

  // Reads in pieces, so memory does not grow with the text; `read` gives 0 at the end.
  void add_stream(FunctionRef<std::size_t(std::span<char>)> read, ThreadPool& pool);
  // The same of a file. Throws Error(io).
  void add_file(const std::string& path, ThreadPool& pool);

  std::uint64_t num_bytes() const { return num_bytes_; }

  // Sorted by bytes: the order does not depend on how the counting went.
  std::vector<std::pair<std::string, std::int64_t>> sorted() const;

 private:
  using Counts = std::unordered_map<std::string, std::int64_t>;
  void count_block(std::string_view block, PreTokenizer::Scratch& scratch, Counts& counts) const;

  AddedTokenMatcher delimiters_;
  PreTokenizer pre_tokenizer_;
  Counts counts_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace dsmoe::text

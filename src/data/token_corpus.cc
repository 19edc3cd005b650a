// The corpus in memory, and what every stored document must satisfy.
#include "data/token_corpus.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/content_hash.h"

namespace dsmoe::data {

uint32_t token_hash(std::span<const int32_t> tokens) {
  const uint64_t hash = content_hash(std::as_bytes(tokens));
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

void check_document(const TokenDocument& document, int64_t vocab_size, size_t num_sources) {
  DSMOE_CHECK(!document.tokens.empty(), "a document without tokens");
  DSMOE_CHECK(document.counted.empty() || document.counted.size() == document.tokens.size(),
              "{} marks for {} tokens", document.counted.size(), document.tokens.size());
  DSMOE_CHECK(document.source >= 0 && static_cast<size_t>(document.source) < num_sources,
              "source {} of {}", document.source, num_sources);
  for (const int32_t id : document.tokens) {
    DSMOE_CHECK(id >= 0 && id < vocab_size, "token id {} is outside the vocabulary of {}", id,
                vocab_size);
  }
}

MemoryCorpus::MemoryCorpus(int64_t vocab_size, std::vector<std::string> sources)
    : vocab_size_(vocab_size), sources_(std::move(sources)) {}

void MemoryCorpus::add(TokenDocument document) {
  check_document(document, vocab_size_, sources_.size());
  num_tokens_ += static_cast<int64_t>(document.tokens.size());
  has_mask_ = has_mask_ || std::count(document.counted.begin(), document.counted.end(), 0) != 0;
  documents_.push_back(std::move(document));
}

const TokenDocument& MemoryCorpus::at(int64_t document) const {
  DSMOE_CHECK(document >= 0 && document < num_documents(), "document {} of {}", document,
              num_documents());
  return documents_[static_cast<size_t>(document)];
}

int64_t MemoryCorpus::length(int64_t document) const {
  return static_cast<int64_t>(at(document).tokens.size());
}

uint32_t MemoryCorpus::content_hash(int64_t document) const {
  return token_hash(at(document).tokens);
}

const TokenDocument& MemoryCorpus::checked(int64_t document, int64_t begin, size_t length) const {
  const TokenDocument& found = at(document);
  const size_t first = static_cast<size_t>(begin), size = found.tokens.size();
  DSMOE_CHECK(begin >= 0 && first <= size && length <= size - first,
              "tokens [{}, +{}) of {} in document {}", begin, length, size, document);
  return found;
}

void MemoryCorpus::copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const {
  const TokenDocument& found = checked(document, begin, out.size());
  std::copy_n(found.tokens.begin() + begin, out.size(), out.begin());
}

void MemoryCorpus::copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const {
  const TokenDocument& found = checked(document, begin, out.size());
  if (found.counted.empty()) return std::fill(out.begin(), out.end(), uint8_t{1});
  std::copy_n(found.counted.begin() + begin, out.size(), out.begin());
}

std::vector<int32_t> all_tokens(const TokenCorpus& corpus, int64_t document) {
  std::vector<int32_t> tokens(static_cast<size_t>(corpus.length(document)));
  corpus.copy_tokens(document, 0, tokens);
  return tokens;
}

}  // namespace dsmoe::data

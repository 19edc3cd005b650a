// What batches are made from: documents as token ids, each with its source and its counted tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dsmoe::data {

// Documents are numbered from 0. A document holds bos (if the tokenizer has one) and ends with eos.
class TokenCorpus {
 public:
  virtual ~TokenCorpus() = default;

  virtual int64_t num_documents() const = 0;
  virtual int64_t num_tokens() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t length(int64_t document) const = 0;
  virtual int32_t source(int64_t document) const = 0;
  // Equal tokens give equal hashes.
  virtual uint32_t content_hash(int64_t document) const = 0;
  // The names that source() indexes: files or domains.
  virtual const std::vector<std::string>& sources() const = 0;

  // Tokens [begin, begin + out.size()) of a document.
  virtual void copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const = 0;
  // False: every token counts as a target.
  virtual bool has_mask() const = 0;
  // out[i] = 1 if token begin + i of the document counts as a target, else 0.
  virtual void copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const = 0;
};

// Every token of one document.
std::vector<int32_t> all_tokens(const TokenCorpus& corpus, int64_t document);

// A document ready to be stored. `counted` is empty when every token counts.
struct TokenDocument {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;
  int32_t source = 0;
};

uint32_t token_hash(std::span<const int32_t> tokens);

// A corpus that lives in memory: the demo, tests.
class MemoryCorpus : public TokenCorpus {
 public:
  MemoryCorpus(int64_t vocab_size, std::vector<std::string> sources);

  // Throws Error(internal) on an id outside the vocabulary or a source outside sources().
  void add(TokenDocument document);

  int64_t num_documents() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t length(int64_t document) const override;
  int32_t source(int64_t document) const override { return at(document).source; }
  uint32_t content_hash(int64_t document) const override;
  const std::vector<std::string>& sources() const override { return sources_; }
  void copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  bool has_mask() const override { return has_mask_; }
  void copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const override;

 private:
  const TokenDocument& at(int64_t document) const;
  const TokenDocument& checked(int64_t document, int64_t begin, size_t length) const;

  int64_t vocab_size_;
  std::vector<std::string> sources_;
  std::vector<TokenDocument> documents_;
  int64_t num_tokens_ = 0;
  bool has_mask_ = false;
};

// Throws Error(internal) unless the document may be stored: the encoder broke its promise.
void check_document(const TokenDocument& document, int64_t vocab_size, size_t num_sources);

}  // namespace dsmoe::data

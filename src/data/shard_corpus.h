// A set of token shards on disk as one corpus, mapped, not loaded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "data/shard_format.h"
#include "data/token_corpus.h"

namespace dsmoe::data {

class ShardCorpus : public TokenCorpus {
 public:
  // Opens 00000.tokens and its successors up to the one marked last. Throws Error(input) when one
  // is missing, damaged, or belongs to another set. A file that is shortened while it is open is
  // Error(io) of the next copy, or the fault of base/map_fault.h.
  ShardCorpus(const std::filesystem::path& folder, ShardCheck check);

  uint64_t corpus_key() const { return shards_.front().header().corpus_key; }
  uint64_t tokenizer_hash() const { return shards_.front().header().tokenizer_hash; }
  // Tokens that count as targets.
  int64_t num_counted() const { return num_counted_; }
  size_t num_shards() const { return shards_.size(); }

  int64_t num_documents() const override { return first_document_.back(); }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t vocab_size() const override;
  int64_t length(int64_t document) const override;
  int32_t source(int64_t document) const override;
  uint32_t content_hash(int64_t document) const override;
  const std::vector<std::string>& sources() const override { return sources_; }
  // Other names for as many sources.
  void name_sources(std::vector<std::string> names);
  void copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  bool has_mask() const override { return num_counted_ != num_tokens_; }
  void copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const override;

 private:
  struct Place {
    const ShardView* shard;
    const MappedFile* file;
    uint64_t idx;  // of the document in its shard
  };
  Place find(int64_t document) const;
  // First token, in the shard, of a checked range of a document.
  uint64_t checked_begin(const Place& place, int64_t begin, size_t length) const;

  std::vector<MappedFile> files_;
  std::vector<ShardView> shards_;
  std::vector<std::string> sources_;
  std::vector<int64_t> first_document_;  // of each shard; then the total
  int64_t num_tokens_ = 0, num_counted_ = 0;
};

}  // namespace dsmoe::data

// Writes a set of token shards into a folder, document by document, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/token_corpus.h"

namespace dsmoe::data {

struct ShardSetOptions {
  std::filesystem::path folder;  // must exist
  int64_t vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t corpus_key = 0;
  std::vector<std::string> sources;
  // A shard is closed when either is reached. Memory while writing: 16 bytes per document and one
  // bit per token of one shard, so 96 MiB at these values, and the document being added.
  uint64_t max_shard_tokens = uint64_t{1} << 28;
  uint64_t max_shard_documents = uint64_t{1} << 22;
};

// Files 00000.tokens, 00001.tokens, ... in `folder`. A set is complete once finish() returned: its
// last shard says so. The folder as a whole is made visible by its owner (corpus_builder.cc).
class ShardSetWriter {
 public:
  explicit ShardSetWriter(ShardSetOptions options);
  ~ShardSetWriter();
  ShardSetWriter(const ShardSetWriter&) = delete;
  ShardSetWriter& operator=(const ShardSetWriter&) = delete;

  void add(const TokenDocument& document);
  // Writes the last shard and makes everything durable.
  void finish();

  uint64_t num_documents() const { return num_documents_; }
  uint64_t num_tokens() const { return num_tokens_; }

 private:
  class OpenShard;

  void close_shard(uint32_t is_last);

  ShardSetOptions options_;
  std::unique_ptr<OpenShard> shard_;
  uint32_t next_shard_idx_ = 0;
  uint64_t num_documents_ = 0, num_tokens_ = 0;
};

std::string shard_file_name(uint32_t shard_idx);

}  // namespace dsmoe::data

// The *.tokens format: header, tokens, loss mask, document table, source names; checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::data {

// Little-endian, 144 bytes. Sections follow in this order, each starting at a multiple of
// kSectionAlignment with zeros between: tokens (token_bytes each), mask (one bit per token, only if
// has_mask, lowest bit first), documents (ShardDocument each), source names (u32 length and bytes
// each). docs/data.md has the table.
struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;  // 2 when vocab_size <= 65,536, else 4
  uint64_t file_bytes;
  uint64_t vocab_size;
  uint64_t num_tokens;
  uint64_t num_counted;  // tokens that count as targets
  uint64_t num_documents;
  uint64_t num_sources;
  uint64_t sources_bytes;
  uint64_t tokens_hash, mask_hash, documents_hash, sources_hash;  // of the sections
  uint64_t tokenizer_hash;
  uint64_t corpus_key;  // what the whole set of shards was built from
  uint32_t shard_idx;
  uint32_t is_last;  // of its set
  uint32_t has_mask;
  uint32_t reserved;     // 0
  uint64_t header_hash;  // of all bytes before this field
};
static_assert(sizeof(ShardHeader) == 144);

struct ShardDocument {
  uint64_t end;  // tokens of this shard up to and including this document
  uint32_t source;
  uint32_t content_hash;
};
static_assert(sizeof(ShardDocument) == 16);

inline constexpr std::string_view kShardMagic = "DSMOETOK";
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint64_t kSectionAlignment = 64;

struct ShardLayout {
  uint64_t tokens, mask, documents, sources, end;  // offsets of the sections; end = file size
  uint64_t tokens_bytes, mask_bytes, documents_bytes;
};

// Throws Error(input) when the counts overflow.
ShardLayout shard_layout(const ShardHeader& header, std::string_view name);

uint64_t shard_header_hash(const ShardHeader& header);

enum class ShardCheck {
  structure,   // header, sizes, document table, source names: cost grows with the documents
  everything,  // also the hashes of tokens and mask: reads the whole file
};

// A checked shard in memory or in a mapping, which must outlive it.
class ShardView {
 public:
  // Throws Error(input) that names the first thing wrong.
  ShardView(std::span<const std::byte> bytes, std::string name, ShardCheck check);

  const ShardHeader& header() const { return header_; }
  const std::vector<std::string>& sources() const { return sources_; }
  const std::string& name() const { return name_; }
  ShardDocument document(uint64_t idx) const;
  uint64_t document_begin(uint64_t idx) const { return idx == 0 ? 0 : document(idx - 1).end; }
  bool counted(uint64_t token) const;
  // Throws Error(input) on an id outside the vocabulary: only a damaged file holds one.
  void copy_tokens(uint64_t first, std::span<int32_t> out) const;

 private:
  void check_header() const;
  void check_hashes(ShardCheck check) const;
  void check_documents() const;
  void read_sources();
  std::span<const std::byte> section(uint64_t offset, uint64_t size) const {
    return bytes_.subspan(offset, size);
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  ShardHeader header_{};
  ShardLayout layout_{};
  std::vector<std::string> sources_;
};

}  // namespace dsmoe::data

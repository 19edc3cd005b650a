// Fuzz target: any bytes as a token shard, checksums made right, give a readable shard or an Error.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/content_hash.h"
#include "data/shard_format.h"

namespace {

using namespace dsmoe::data;

// Without this every input would end at the first checksum.
void seal(std::vector<std::byte>& bytes) {
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(header.magic, kShardMagic.data(), sizeof header.magic);
  header.version = kShardVersion;
  header.token_bytes = header.vocab_size <= 65536 ? 2 : 4;
  header.file_bytes = bytes.size();
  try {
    const ShardLayout layout = shard_layout(header, "f");
    if (layout.end <= bytes.size()) {
      const auto hash = [&](uint64_t offset, uint64_t size) {
        return content_hash(std::span<const std::byte>(bytes).subspan(offset, size));
      };
      header.tokens_hash = hash(layout.tokens, layout.tokens_bytes);
      header.mask_hash = hash(layout.mask, layout.mask_bytes);
      header.documents_hash = hash(layout.documents, layout.documents_bytes);
      header.sources_hash = hash(layout.sources, header.sources_bytes);
    }
  } catch (const dsmoe::Error&) {
  }
  header.header_hash = shard_header_hash(header);
  std::memcpy(bytes.data(), &header, sizeof header);
}

void read_everything(std::span<const std::byte> bytes) {
  try {
    const ShardView shard(bytes, "f", ShardCheck::everything);
    std::vector<int32_t> ids;
    for (uint64_t d = 0; d < shard.header().num_documents; ++d) {
      ids.resize(shard.document(d).end - shard.document_begin(d));
      shard.copy_tokens(shard.document_begin(d), ids);
      for (uint64_t t = shard.document_begin(d); t < shard.document(d).end; ++t) shard.counted(t);
      for (const int32_t id : ids) {
        if (id < 0 || static_cast<uint64_t>(id) >= shard.header().vocab_size) __builtin_trap();
      }
    }
  } catch (const dsmoe::Error& error) {
    if (error.kind() != dsmoe::ErrorKind::input) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto given = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(given.begin(), given.end());
  read_everything(bytes);
  if (bytes.size() < sizeof(ShardHeader)) return 0;
  seal(bytes);
  read_everything(bytes);
  return 0;
}

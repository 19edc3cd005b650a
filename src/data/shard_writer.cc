// Tokens stream to the file; mask and document table wait in memory; the header comes last.
#include "data/shard_writer.h"

#include <cstring>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/content_hash.h"
#include "data/shard_format.h"

namespace dsmoe::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

// A file written front to back, whose start is written again at the end.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path) : file_(path) {}

  uint64_t position() const { return written_ + buffer_.size(); }

  void append(std::span<const std::byte> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void pad_to(uint64_t offset) {
    DSMOE_CHECK(offset >= position(), "offset {} is behind {}", offset, position());
    buffer_.resize(buffer_.size() + (offset - position()));
  }
  void finish(std::span<const std::byte> start) {
    flush();
    file_.write_at(0, start);
    file_.commit();
  }

 private:
  void flush() {
    file_.write_at(written_, buffer_);
    written_ += buffer_.size();
    buffer_.clear();
  }

  AtomicFile file_;
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0;
};

std::vector<std::byte> encode_sources(const std::vector<std::string>& sources) {
  std::vector<std::byte> bytes;
  for (const std::string& source : sources) {
    const uint32_t length = static_cast<uint32_t>(source.size());
    const auto put = [&](std::span<const std::byte> part) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    };
    put(std::as_bytes(std::span(&length, 1)));
    put(std::as_bytes(std::span(source)));
  }
  return bytes;
}

}  // namespace

class ShardSetWriter::OpenShard {
 public:
  OpenShard(const ShardSetOptions& options, uint32_t shard_idx)
      : options_(options), file_(options.folder / shard_file_name(shard_idx)) {
    std::memcpy(header_.magic, kShardMagic.data(), sizeof header_.magic);
    header_.version = kShardVersion;
    header_.token_bytes = options.vocab_size <= 65536 ? 2 : 4;
    header_.vocab_size = static_cast<uint64_t>(options.vocab_size);
    header_.num_sources = options.sources.size();
    header_.tokenizer_hash = options.tokenizer_hash;
    header_.corpus_key = options.corpus_key;
    header_.shard_idx = shard_idx;
    file_.pad_to(shard_layout(header_, "").tokens);
  }

  bool full() const {
    return header_.num_tokens >= options_.max_shard_tokens ||
           header_.num_documents >= options_.max_shard_documents;
  }

  void add(const TokenDocument& document) {
    append_tokens(document.tokens);
    append_mask(document);
    header_.num_tokens += document.tokens.size();
    ++header_.num_documents;
    documents_.push_back({.end = header_.num_tokens,
                          .source = static_cast<uint32_t>(document.source),
                          .content_hash = token_hash(document.tokens)});
  }

  void finish(uint32_t is_last) {
    const std::vector<std::byte> sources = encode_sources(options_.sources);
    header_.is_last = is_last;
    header_.has_mask = header_.num_counted != header_.num_tokens;
    header_.sources_bytes = sources.size();
    const ShardLayout layout = shard_layout(header_, options_.folder.string());
    header_.file_bytes = layout.end;
    header_.tokens_hash = tokens_hash_.value();
    if (header_.has_mask == 0) mask_.clear();
    header_.mask_hash = append_section(layout.mask, std::as_bytes(std::span(mask_)));
    header_.documents_hash = append_section(layout.documents, std::as_bytes(std::span(documents_)));
    header_.sources_hash = append_section(layout.sources, sources);
    header_.header_hash = shard_header_hash(header_);
    file_.finish(std::as_bytes(std::span(&header_, 1)));
  }

 private:
  void append_tokens(std::span<const int32_t> tokens) {
    if (header_.token_bytes == 4) return append_token_bytes(std::as_bytes(tokens));
    narrow_.assign(tokens.begin(), tokens.end());
    append_token_bytes(std::as_bytes(std::span(narrow_)));
  }
  void append_token_bytes(std::span<const std::byte> bytes) {
    tokens_hash_.update(bytes);
    file_.append(bytes);
  }
  void append_mask(const TokenDocument& document) {
    mask_.resize((header_.num_tokens + document.tokens.size() + 7) / 8);
    for (size_t i = 0; i < document.tokens.size(); ++i) {
      if (!document.counted.empty() && document.counted[i] == 0) continue;
      const uint64_t bit = header_.num_tokens + i;
      mask_[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
      ++header_.num_counted;
    }
  }
  uint64_t append_section(uint64_t offset, std::span<const std::byte> bytes) {
    file_.pad_to(offset);
    file_.append(bytes);
    return content_hash(bytes);
  }

  const ShardSetOptions& options_;
  OutputFile file_;
  ShardHeader header_{};
  ContentHash tokens_hash_;
  std::vector<uint16_t> narrow_;
  std::vector<uint8_t> mask_;
  std::vector<ShardDocument> documents_;
};

std::string shard_file_name(uint32_t shard_idx) { return fmt::format("{:05}.tokens", shard_idx); }

ShardSetWriter::ShardSetWriter(ShardSetOptions options) : options_(std::move(options)) {
  DSMOE_CHECK(options_.vocab_size > 0 && options_.vocab_size <= int64_t{1} << 31,
              "vocabulary of {}", options_.vocab_size);
  for (const std::string& source : options_.sources) {
    DSMOE_CHECK(source.size() < size_t{1} << 16, "a source name of {} bytes", source.size());
  }
}

ShardSetWriter::~ShardSetWriter() = default;

void ShardSetWriter::add(const TokenDocument& document) {
  check_document(document, options_.vocab_size, options_.sources.size());
  if (shard_ && shard_->full()) close_shard(0);
  if (!shard_) shard_ = std::make_unique<OpenShard>(options_, next_shard_idx_++);
  shard_->add(document);
  ++num_documents_;
  num_tokens_ += document.tokens.size();
}

void ShardSetWriter::close_shard(uint32_t is_last) {
  shard_->finish(is_last);
  shard_.reset();
}

void ShardSetWriter::finish() {
  if (!shard_) shard_ = std::make_unique<OpenShard>(options_, next_shard_idx_++);
  close_shard(1);
}

}  // namespace dsmoe::data

// Checks of a token shard, from the magic number to the last document.
#include "data/shard_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/content_hash.h"

namespace dsmoe::data {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are read as stored");

// Appends sections to a layout; any overflow makes the header invalid.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(std::string_view name) : name_(name) {}

  uint64_t bytes(uint64_t count, uint64_t each) const {
    uint64_t product;
    if (__builtin_mul_overflow(count, each, &product)) refuse();
    return product;
  }
  uint64_t add(uint64_t size) {
    uint64_t begin;
    if (__builtin_add_overflow(end_, kSectionAlignment - 1, &begin)) refuse();
    begin -= begin % kSectionAlignment;
    if (__builtin_add_overflow(begin, size, &end_)) refuse();
    return begin;
  }
  uint64_t end() const { return end_; }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorKind::input, "{}: the counts in the header are impossibly large; build it again",
         name_);
  }

  std::string_view name_;
  uint64_t end_ = sizeof(ShardHeader);
};

template <class... Args>
[[noreturn]] void damaged(const std::string& name, fmt::format_string<Args...> text,
                          Args&&... args) {
  fail(ErrorKind::input, "{}: damaged token shard: {}; delete it to have it built again", name,
       fmt::format(text, std::forward<Args>(args)...));
}

// Copies ids of type Id and returns the largest.
template <class Id>
uint32_t widen(const std::byte* from, std::span<int32_t> out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    Id id;
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    largest = std::max<uint32_t>(largest, id);
    out[i] = static_cast<int32_t>(id);
  }
  return largest;
}

}  // namespace

ShardLayout shard_layout(const ShardHeader& header, std::string_view name) {
  LayoutBuilder builder(name);
  ShardLayout layout{};
  layout.tokens_bytes = builder.bytes(header.num_tokens, header.token_bytes);
  layout.mask_bytes =
      header.has_mask != 0 ? header.num_tokens / 8 + (header.num_tokens % 8 != 0) : 0;
  layout.documents_bytes = builder.bytes(header.num_documents, sizeof(ShardDocument));
  layout.tokens = builder.add(layout.tokens_bytes);
  layout.mask = builder.add(layout.mask_bytes);
  layout.documents = builder.add(layout.documents_bytes);
  layout.sources = builder.add(header.sources_bytes);
  layout.end = builder.end();
  return layout;
}

uint64_t shard_header_hash(const ShardHeader& header) {
  return content_hash(
      std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, header_hash)));
}

ShardView::ShardView(std::span<const std::byte> bytes, std::string name, ShardCheck check)
    : bytes_(bytes), name_(std::move(name)) {
  if (bytes_.size() < sizeof(ShardHeader)) {
    damaged(name_, "{} bytes, shorter than the header of {}", bytes_.size(), sizeof(ShardHeader));
  }
  std::memcpy(&header_, bytes_.data(), sizeof header_);
  check_header();
  layout_ = shard_layout(header_, name_);
  if (header_.file_bytes != bytes_.size() || layout_.end != bytes_.size()) {
    damaged(name_, "the file has {} bytes, its header says {} and its counts need {}",
            bytes_.size(), header_.file_bytes, layout_.end);
  }
  check_hashes(check);
  read_sources();
  check_documents();
}

void ShardView::check_header() const {
  if (std::string_view(header_.magic, sizeof header_.magic) != kShardMagic) {
    fail(ErrorKind::input, "{} is not a token shard: it does not begin with {}", name_,
         kShardMagic);
  }
  if (header_.version != kShardVersion) {
    fail(ErrorKind::input, "{}: token shard version {}, this program reads {}; build it again",
         name_, header_.version, kShardVersion);
  }
  if (header_.header_hash != shard_header_hash(header_)) {
    damaged(name_, "the header does not match its checksum");
  }
  constexpr uint64_t kMaxVocab = uint64_t{1} << 31;
  if (header_.vocab_size == 0 || header_.vocab_size > kMaxVocab) {
    damaged(name_, "vocabulary of {}", header_.vocab_size);
  }
  const uint32_t token_bytes = header_.vocab_size <= 65536 ? 2 : 4;
  if (header_.token_bytes != token_bytes) {
    damaged(name_, "{} bytes per token, expected {} for a vocabulary of {}", header_.token_bytes,
            token_bytes, header_.vocab_size);
  }
  if (header_.has_mask > 1 || header_.is_last > 1 || header_.reserved != 0) {
    damaged(name_, "flags {} {} {}, expected 0 or 1, 0 or 1, 0", header_.has_mask, header_.is_last,
            header_.reserved);
  }
  const bool counted_fits = header_.has_mask != 0 ? header_.num_counted <= header_.num_tokens
                                                  : header_.num_counted == header_.num_tokens;
  if (!counted_fits) {
    damaged(name_, "{} counted tokens of {}", header_.num_counted, header_.num_tokens);
  }
}

void ShardView::check_hashes(ShardCheck check) const {
  const auto compare = [&](const char* what, uint64_t offset, uint64_t size, uint64_t expected) {
    if (content_hash(section(offset, size)) != expected) {
      damaged(name_, "the {} do not match their checksum", what);
    }
  };
  compare("documents", layout_.documents, layout_.documents_bytes, header_.documents_hash);
  compare("source names", layout_.sources, header_.sources_bytes, header_.sources_hash);
  if (check == ShardCheck::structure) return;
  compare("tokens", layout_.tokens, layout_.tokens_bytes, header_.tokens_hash);
  compare("mask bits", layout_.mask, layout_.mask_bytes, header_.mask_hash);
  uint64_t counted = header_.has_mask != 0 ? 0 : header_.num_tokens;
  for (const std::byte bits : section(layout_.mask, layout_.mask_bytes)) {
    counted += static_cast<uint64_t>(std::popcount(static_cast<uint8_t>(bits)));
  }
  if (counted != header_.num_counted) {
    damaged(name_, "{} mask bits, the header says {}", counted, header_.num_counted);
  }
}

void ShardView::read_sources() {
  std::span<const std::byte> rest = section(layout_.sources, header_.sources_bytes);
  for (uint64_t i = 0; i < header_.num_sources; ++i) {
    uint32_t length = 0;
    if (rest.size() < sizeof length)
      damaged(name_, "source names end at {} of {}", i, header_.num_sources);
    std::memcpy(&length, rest.data(), sizeof length);
    rest = rest.subspan(sizeof length);
    if (rest.size() < length)
      damaged(name_, "source name {} has {} bytes, {} are left", i, length, rest.size());
    sources_.emplace_back(reinterpret_cast<const char*>(rest.data()), length);
    rest = rest.subspan(length);
  }
  if (!rest.empty()) damaged(name_, "{} bytes after the last source name", rest.size());
}

void ShardView::check_documents() const {
  uint64_t previous = 0;
  for (uint64_t i = 0; i < header_.num_documents; ++i) {
    const ShardDocument entry = document(i);
    if (entry.end <= previous)
      damaged(name_, "document {} ends at token {}, the one before at {}", i, entry.end, previous);
    if (entry.source >= header_.num_sources) {
      damaged(name_, "document {} has source {} of {}", i, entry.source, header_.num_sources);
    }
    previous = entry.end;
  }
  if (previous != header_.num_tokens) {
    damaged(name_, "the documents hold {} tokens, the header says {}", previous,
            header_.num_tokens);
  }
}

ShardDocument ShardView::document(uint64_t idx) const {
  ShardDocument entry;
  std::memcpy(&entry, bytes_.data() + layout_.documents + idx * sizeof entry, sizeof entry);
  return entry;
}

bool ShardView::counted(uint64_t token) const {
  if (header_.has_mask == 0) return true;
  return ((static_cast<unsigned>(bytes_[layout_.mask + token / 8]) >> (token % 8)) & 1u) != 0;
}

void ShardView::copy_tokens(uint64_t first, std::span<int32_t> out) const {
  DSMOE_CHECK(first <= header_.num_tokens && out.size() <= header_.num_tokens - first,
              "tokens [{}, +{}) of {}", first, out.size(), header_.num_tokens);
  const std::byte* at = bytes_.data() + layout_.tokens + first * header_.token_bytes;
  const uint32_t largest =
      header_.token_bytes == 2 ? widen<uint16_t>(at, out) : widen<uint32_t>(at, out);
  if (largest >= header_.vocab_size && !out.empty()) {
    damaged(name_, "token id {} in a vocabulary of {}", largest, header_.vocab_size);
  }
}

}  // namespace dsmoe::data

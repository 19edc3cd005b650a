// A map of every shard, and the search from a document number to its shard.
#include "data/shard_corpus.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/shard_writer.h"

namespace dsmoe::data {

ShardCorpus::ShardCorpus(const std::filesystem::path& folder, ShardCheck check)
    : first_document_{0} {
  for (uint32_t idx = 0; shards_.empty() || shards_.back().header().is_last == 0; ++idx) {
    const std::filesystem::path path = folder / shard_file_name(idx);
    files_.emplace_back(path);
    shards_.emplace_back(files_.back().bytes(), path.string(), check);
    const ShardView& shard = shards_.back();
    const ShardHeader &header = shard.header(), &first = shards_.front().header();
    if (header.shard_idx != idx || header.corpus_key != first.corpus_key ||
        header.tokenizer_hash != first.tokenizer_hash || header.vocab_size != first.vocab_size ||
        shard.sources() != shards_.front().sources()) {
      fail(ErrorKind::input,
           "{} belongs to another set of shards; delete {} to have it built again", path.string(),
           folder.string());
    }
    first_document_.push_back(first_document_.back() + static_cast<int64_t>(header.num_documents));
    num_tokens_ += static_cast<int64_t>(header.num_tokens);
    num_counted_ += static_cast<int64_t>(header.num_counted);
  }
  sources_ = shards_.front().sources();
}

void ShardCorpus::name_sources(std::vector<std::string> names) {
  DSMOE_CHECK(names.size() == sources_.size(), "{} names for {} sources", names.size(),
              sources_.size());
  sources_ = std::move(names);
}

ShardCorpus::Place ShardCorpus::find(int64_t document) const {
  DSMOE_CHECK(document >= 0 && document < num_documents(), "document {} of {}", document,
              num_documents());
  const auto after = std::upper_bound(first_document_.begin(), first_document_.end(), document);
  const size_t shard = static_cast<size_t>(after - first_document_.begin()) - 1;
  return {.shard = &shards_[shard],
          .file = &files_[shard],
          .idx = static_cast<uint64_t>(document - first_document_[shard])};
}

int64_t ShardCorpus::vocab_size() const {
  return static_cast<int64_t>(shards_.front().header().vocab_size);
}

int64_t ShardCorpus::length(int64_t document) const {
  const auto [shard, file, idx] = find(document);
  const uint64_t begin = shard->document_begin(idx), end = shard->document(idx).end;
  // No document is empty; behind the end of a file that was cut, the page holds zeros.
  if (end <= begin) {
    file->check_length();
    fail(ErrorKind::input, "{}: document {} ends at token {}, it begins at {}", shard->name(), idx,
         end, begin);
  }
  return static_cast<int64_t>(end - begin);
}

int32_t ShardCorpus::source(int64_t document) const {
  const auto [shard, file, idx] = find(document);
  return static_cast<int32_t>(shard->document(idx).source);
}

uint32_t ShardCorpus::content_hash(int64_t document) const {
  const auto [shard, file, idx] = find(document);
  return shard->document(idx).content_hash;
}

uint64_t ShardCorpus::checked_begin(const Place& place, int64_t begin, size_t length) const {
  const uint64_t first = place.shard->document_begin(place.idx) + static_cast<uint64_t>(begin);
  const uint64_t end = place.shard->document(place.idx).end;
  DSMOE_CHECK(begin >= 0 && first <= end && length <= end - first,
              "tokens [{}, +{}) of document {} of {}", begin, length, place.idx,
              place.shard->name());
  return first;
}

void ShardCorpus::copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const {
  const Place place = find(document);
  place.file->check_length();  // before a page is touched that is gone,
  place.shard->copy_tokens(checked_begin(place, begin, out.size()), out);
  place.file->check_length();  // and after one was read that may have been zeros
}

void ShardCorpus::copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const {
  const Place place = find(document);
  place.file->check_length();
  const uint64_t first = checked_begin(place, begin, out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = place.shard->counted(first + i) ? 1 : 0;
  place.file->check_length();
}

}  // namespace dsmoe::data

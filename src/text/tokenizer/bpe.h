// Byte-pair encoding of one piece of text: vocabulary, merges, and a cache of words.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dsmoe::text {

struct BpeConfig {
  std::unordered_map<std::string, std::int32_t> vocab;      // as written in the file
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool byte_level =
      false;  // vocabulary written in the alphabet of byte_alphabet.h; pieces start as bytes
};

// (left id, right id) -> rank and product. Open addressing; a lookup is one or two cache lines.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNoRank;
    std::int32_t product = 0;
  };
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

  explicit MergeTable(std::size_t num_merges);
  void insert(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::size_t slot_of(std::uint64_t key) const;

  int shift_;
  std::vector<Slot> slots_;
};

// Words seen lately and their ids. Fixed size, one line per entry, the newer entry wins.
class WordCache {
 public:
  static constexpr std::size_t kMaxKey = 22;
  static constexpr std::size_t kMaxIds = 10;

  // True and appended to `ids` when `word` (1..kMaxKey bytes) is known.
  bool find(std::string_view word, std::vector<std::int32_t>& ids);
  // Remembers the ids from `first` on for the word of the last find() that failed.
  void remember(std::string_view word, const std::vector<std::int32_t>& ids, std::size_t first);

 private:
  struct Entry {
    std::uint8_t key_size = 0;
    std::uint8_t num_ids = 0;
    std::array<char, kMaxKey> key;
    std::array<std::int32_t, kMaxIds> ids;
  };
  static constexpr std::size_t kNumEntries = std::size_t{1} << 15;
  std::unique_ptr<Entry[]> entries_;
  std::size_t slot_ = 0;
};

// One per thread.
struct BpeScratch {
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t position;
    std::int32_t product;
  };
  WordCache cache;
  std::vector<std::int32_t> symbols;
  std::vector<std::uint32_t> previous;
  std::vector<std::uint32_t> next;
  std::vector<Candidate> heap;
};

class BpeModel {
 public:
  // Throws Error(input), starting with `what`, when merges or unk_token name tokens that are not in
  // the vocabulary.
  BpeModel(const BpeConfig& config, std::string_view what);

  // Appends the ids of one piece of valid UTF-8. Time n log n in its length, linear for what real
  // text looks like.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

  // Bytes that are no valid UTF-8: possible when can_encode_byte() of each.
  void encode_bytes(std::string_view bytes, BpeScratch& scratch,
                    std::vector<std::int32_t>& ids) const;
  bool can_encode_byte(unsigned char byte) const { return byte_ids_[byte] >= 0; }

 private:
  static constexpr std::int32_t kNoId = -1;

  void load_symbols(const BpeConfig& config);
  void load_merges(const BpeConfig& config, std::string_view what);
  void note_pairs(std::string_view product);
  void decide_cutting();
  std::int32_t char_id(std::uint32_t code_point) const;
  std::size_t cut_after(std::string_view piece, std::size_t from) const;
  void encode_word(std::string_view word, BpeScratch& scratch,
                   std::vector<std::int32_t>& ids) const;
  void to_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_and_append(BpeScratch& scratch, std::vector<std::int32_t>& ids) const;
  void merge_few(std::vector<std::int32_t>& symbols) const;
  void merge_many(BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

  bool byte_level_;
  bool fuse_unk_;
  bool ignore_merges_;
  std::int32_t unk_id_ = kNoId;
  std::array<std::int32_t, 256>
      byte_ids_;  // of the byte symbols, or of <0x00>..<0xFF> with byte_fallback
  bool byte_fallback_ = false;
  std::unordered_map<std::uint32_t, std::int32_t> char_ids_;
  std::array<std::int32_t, 128> ascii_ids_;
  MergeTable merges_;
  std::unordered_map<std::string, std::int32_t> whole_words_;  // for ignore_merges

  // Neighbours that stand side by side inside some product of a merge (hashed; exact for bytes).
  // Between others no token can ever span, so a piece may be cut there without changing the result.
  static constexpr std::size_t kNumPairBits = 1 << 20;
  std::unique_ptr<std::bitset<kNumPairBits>> joinable_;
  bool merges_use_fallback_ = false;
  bool may_cut_ = false;
};

}  // namespace dsmoe::text

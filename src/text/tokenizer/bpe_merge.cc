// The merges themselves: a scan for short words, a heap over a linked list for long ones; and the
// two tables.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "text/tokenizer/bpe.h"

namespace dsmoe::text {
namespace {

// Below this the quadratic scan over a few cache lines beats the heap.
constexpr std::size_t kFewSymbols = 24;
constexpr std::uint32_t kNone = 0xFFFFFFFF;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  a = (a ^ b) * 0x9E3779B97F4A7C15u;
  return a ^ a >> 29;
}

// At most WordCache::kMaxKey bytes.
std::uint64_t hash_word(std::string_view word) {
  std::uint64_t hash = word.size();
  std::uint64_t part = 0;
  std::size_t at = 0;
  for (; at + sizeof part <= word.size(); at += sizeof part) {
    std::memcpy(&part, word.data() + at, sizeof part);
    hash = mix(hash, part);
  }
  part = 0;
  std::memcpy(&part, word.data() + at, word.size() - at);
  return mix(hash, part);
}

// std::*_heap put the greatest first; the next merge is the one of lowest rank, leftmost among
// equals.
bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(num_merges, 8) * 2);
  shift_ = 64 - std::countr_zero(num_slots);
  slots_.resize(num_slots);
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  return static_cast<std::size_t>((key ^ key >> 32) * 0x9E3779B97F4A7C15u >> shift_);
}

// A pair listed twice keeps its last rank, as in the oracle.
void MergeTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key =
      std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key)
    slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = {.key = key, .merge = merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key =
      std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  for (std::size_t slot = slot_of(key);; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].key == key) return slots_[slot].merge;
    if (slots_[slot].key == kEmpty) return {};
  }
}

bool WordCache::find(std::string_view word, std::vector<std::int32_t>& ids) {
  if (!entries_) entries_ = std::make_unique<Entry[]>(kNumEntries);
  slot_ = static_cast<std::size_t>(hash_word(word) >> 32) % kNumEntries;
  const Entry& entry = entries_[slot_];
  if (entry.key_size != word.size() ||
      std::memcmp(entry.key.data(), word.data(), word.size()) != 0) {
    return false;
  }
  ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.num_ids);
  return true;
}

void WordCache::remember(std::string_view word, const std::vector<std::int32_t>& ids,
                         std::size_t first) {
  const std::size_t num_ids = ids.size() - first;
  if (num_ids > kMaxIds || word.empty()) return;
  Entry& entry = entries_[slot_];
  entry.key_size = static_cast<std::uint8_t>(word.size());
  entry.num_ids = static_cast<std::uint8_t>(num_ids);
  std::copy(word.begin(), word.end(), entry.key.begin());
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry.ids.begin());
}

void BpeModel::merge_and_append(BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (scratch.symbols.size() > kFewSymbols) {
    merge_many(scratch, ids);
    return;
  }
  if (scratch.symbols.size() > 1) merge_few(scratch.symbols);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void BpeModel::merge_few(std::vector<std::int32_t>& symbols) const {
  std::array<MergeTable::Merge, kFewSymbols> merges;  // merges[i]: of symbols i and i + 1
  std::size_t num_pairs = symbols.size() - 1;
  for (std::size_t i = 0; i < num_pairs; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (num_pairs > 0) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < num_pairs; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoRank) break;
    symbols[best] = merges[best].product;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<std::ptrdiff_t>(num_pairs),
              merges.begin() + static_cast<std::ptrdiff_t>(best));
    --num_pairs;
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best < num_pairs) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
}

void BpeModel::merge_many(BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t>& symbols = scratch.symbols;
  const std::size_t count = symbols.size();
  DSMOE_CHECK(count < kNone, "{} symbols in one piece", count);
  std::vector<std::uint32_t>& previous = scratch.previous;
  std::vector<std::uint32_t>& next = scratch.next;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap;
  previous.resize(count);
  next.resize(count);
  heap.clear();
  const auto candidate = [&](std::uint32_t left, std::uint32_t right) {
    const MergeTable::Merge merge = merges_.find(symbols[left], symbols[right]);
    return BpeScratch::Candidate{.rank = merge.rank, .position = left, .product = merge.product};
  };
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    const BpeScratch::Candidate found = candidate(left, right);
    if (found.rank == MergeTable::kNoRank) return;
    heap.push_back(found);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == count ? kNone : i + 1;
    if (i + 1 == count) continue;
    const BpeScratch::Candidate found = candidate(i, i + 1);
    if (found.rank != MergeTable::kNoRank) heap.push_back(found);
  }
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const std::uint32_t left = top.position;
    const std::uint32_t right = next[left];
    if (symbols[left] == kNoId || right == kNone) continue;  // swallowed, or the last one now
    // Older candidates of this position are recognised by what they would make.
    const MergeTable::Merge merge = merges_.find(symbols[left], symbols[right]);
    if (merge.rank == MergeTable::kNoRank || merge.product != top.product) continue;
    symbols[left] = top.product;
    symbols[right] = kNoId;
    next[left] = next[right];
    if (next[right] != kNone) previous[next[right]] = left;
    if (previous[left] != kNone) push(previous[left], left);
    if (next[left] != kNone) push(left, next[left]);
  }
  for (const std::int32_t symbol : symbols) {
    if (symbol != kNoId) ids.push_back(symbol);
  }
  constexpr std::size_t kKeep = 1 << 20;  // a giant piece must not pin its memory
  if (count > kKeep) {
    symbols = {};
    previous = {};
    next = {};
    heap = {};
  }
}

}  // namespace dsmoe::text

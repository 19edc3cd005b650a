// Decompose, sort marks by class, compose: the algorithm of Unicode Standard Annex 15.
#include "text/unicode_normal.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_normal.inc"

namespace dsmoe::text {
namespace {

struct ClassRange {
  uint32_t first, last;
  uint8_t value;
};
constexpr ClassRange kClasses[] = {DSMOE_COMBINING_CLASSES};

struct Decomposition {
  uint32_t whole, first, second;  // second 0: none
  bool composes;                  // the parts become the whole again
};
constexpr Decomposition kDecompositions[] = {DSMOE_DECOMPOSITIONS};

// Syllables of Hangul follow from their numbers.
constexpr uint32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;
constexpr uint32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

// Below this every character is a starter that nothing before it composes with.
constexpr uint32_t kFirstMark = 0x300;

uint8_t class_of(uint32_t c) {
  if (c < kFirstMark) return 0;
  const auto* found = std::ranges::lower_bound(kClasses, c, {}, &ClassRange::last);
  return found != std::end(kClasses) && found->first <= c ? found->value : 0;
}

const Decomposition* decomposition_of(uint32_t c) {
  const auto* found = std::ranges::lower_bound(kDecompositions, c, {}, &Decomposition::whole);
  return found != std::end(kDecompositions) && found->whole == c ? found : nullptr;
}

uint64_t key_of(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

const std::unordered_map<uint64_t, uint32_t>& compositions() {
  static const auto* const table = [] {
    auto* made = new std::unordered_map<uint64_t, uint32_t>;
    for (const Decomposition& pair : kDecompositions) {
      if (pair.composes && pair.second != 0)
        made->emplace(key_of(pair.first, pair.second), pair.whole);
    }
    return made;
  }();
  return *table;
}

uint32_t composed(uint32_t first, uint32_t second) {  // 0: they stay apart
  if (first - kLeads < kNumLeads && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTails;
  }
  const bool is_open = first - kSyllables < kNumSyllables && (first - kSyllables) % kNumTails == 0;
  if (is_open && second > kTails && second - kTails < kNumTails) return first + (second - kTails);
  const auto found = compositions().find(key_of(first, second));
  return found == compositions().end() ? 0 : found->second;
}

struct Mark {
  uint32_t point;
  uint8_t order;
};

void decompose(uint32_t c, std::vector<Mark>& out) {
  if (const uint32_t index = c - kSyllables; index < kNumSyllables) {
    out.push_back({kLeads + index / kNumTails / kNumVowels, 0});
    out.push_back({kVowels + index / kNumTails % kNumVowels, 0});
    if (index % kNumTails != 0) out.push_back({kTails + index % kNumTails, 0});
    return;
  }
  const Decomposition* pair = decomposition_of(c);
  if (pair == nullptr) {
    out.push_back({c, class_of(c)});
    return;
  }
  decompose(pair->first, out);
  if (pair->second != 0) decompose(pair->second, out);
}

void sort_marks(std::vector<Mark>& points) {
  for (auto begin = points.begin(); begin != points.end();) {
    if (begin->order == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [](Mark m) { return m.order == 0; });
    std::stable_sort(begin, end, [](Mark a, Mark b) { return a.order < b.order; });
    begin = end;
  }
}

// A character joins the last starter unless a mark of its class or a higher one stands between.
void compose(std::vector<Mark>& points) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t starter = kNone, size = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Mark mark = points[i];
    if (starter != kNone) {
      const bool is_next = starter + 1 == size;
      const bool is_blocked = !is_next && points[size - 1].order >= mark.order;
      const uint32_t whole = is_blocked ? 0 : composed(points[starter].point, mark.point);
      if (whole != 0) {
        points[starter].point = whole;
        continue;
      }
    }
    if (mark.order == 0) starter = size;
    points[size++] = mark;
  }
  points.resize(size);
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  // 0xCC is the first byte of U+0300.
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0xcc; });
}

void append_nfc(std::string_view text, std::string& out) {
  std::vector<Mark> points;
  // What begins with a character below the marks stands alone: a part at a time.
  const auto flush = [&] {
    sort_marks(points);
    compose(points);
    for (const Mark mark : points) append_utf8(out, mark.point);
    points.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const uint32_t c = next_code_point(text, at);
    if (c < kFirstMark && !points.empty()) flush();
    decompose(c, points);
  }
  flush();
}

}  // namespace dsmoe::text

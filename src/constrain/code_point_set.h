// Sets of characters as sorted ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "constrain/nfa.h"

namespace dsmoe::constrain {

inline constexpr uint32_t kLastCodePoint = 0x10ffff;
using CodePointSet = std::vector<CodePoints>;

// Ascending, without overlaps or neighbours.
inline CodePointSet normalised(CodePointSet set) {
  std::sort(set.begin(), set.end(),
            [](const CodePoints& a, const CodePoints& b) { return a.low < b.low; });
  CodePointSet result;
  for (const CodePoints& range : set) {
    if (!result.empty() && range.low <= result.back().high + 1) {
      result.back().high = std::max(result.back().high, range.high);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

inline CodePointSet complement(CodePointSet set) {
  CodePointSet result;
  uint32_t next = 0;
  for (const CodePoints& range : normalised(std::move(set))) {
    if (range.low > next) result.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCodePoint) result.push_back({next, kLastCodePoint});
  return result;
}

inline bool overlap(const CodePointSet& a, const CodePointSet& b) {
  return std::any_of(a.begin(), a.end(), [&](const CodePoints& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const CodePoints& y) { return x.low <= y.high && y.low <= x.high; });
  });
}

inline void append(CodePointSet& to, const CodePointSet& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace dsmoe::constrain

// Where the tiles of up to two panels come from: the second cache, memory, or integers; and what
// each does between products for those that come later.
#pragma once

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/decode_tile.h"
#include "kernels/cpu/tier/tiles.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Lines of a tile in parts, to be asked for between products.
constexpr int64_t kSoonSteps = 2;
template <_mm_hint hint, int part, int parts>
DSMOE_HD void ask_for_tile(const char* tile) {
  constexpr int64_t kLines = kTileBytes / 64;
  for (int64_t line = kLines * part / parts; line < kLines * (part + 1) / parts; ++line)
    _mm_prefetch(tile + line * 64, hint);
}

// The second cache: what comes two steps later is asked for into the first.
class CachedTiles {
 public:
  static constexpr int kPause = 8;
  static constexpr bool kRoomBeside = true;  // a vector unit is idle
  explicit CachedTiles(const char* const (&panels)[2], int64_t first_step = 0)
      : panels_{panels[0] + first_step * kTileBytes, panels[1] + first_step * kTileBytes} {}
  DSMOE_HD void start() const {}
  DSMOE_HD const char* at(int panel, int64_t step) const {
    return panels_[panel] + step * kTileBytes;
  }
  // What is done between products for a part of the tile of a later step.
  template <int part, int parts>
  DSMOE_HD void prepare(int panel, int64_t step) const {
    ask_for_tile<_MM_HINT_T0, part, parts>(at(panel, step + kSoonSteps));
  }

 private:
  const char* panels_[2];
};

// Memory: the panels that come next are asked for into the second cache, a few lines between two
// products: all at once would fill the line buffers, and loads would wait behind them.
class StreamedTiles : public CachedTiles {
 public:
  StreamedTiles(const char* const (&panels)[2], const char* const (&next)[2])
      : CachedTiles(panels), next_{next[0], next[1]} {}
  template <int part, int parts>
  DSMOE_HD void prepare(int panel, int64_t step) const {
    ask_for_tile<_MM_HINT_T1, part, parts>(next_[panel] + step * kTileBytes);
    CachedTiles::prepare<part, parts>(panel, step);
  }

 private:
  const char* next_[2];
};

// Steps of k that all row tiles meet before the next ones, in several passes.
struct Pass {
  int64_t first_step;
  int64_t steps;
  int64_t idx;
  int64_t count;  // of passes
};

// The same for one of several passes over the panels: each asks for its share of the lines, so that
// memory is read all the time. A share is a range and asked for in order: what the cache's own
// prefetcher, which follows ascending lines, fetches before it is asked for holds no line buffer.
// kSoon: the tiles themselves are asked for into the first cache, as above; with many passes, each
// of which finds them in the second, that costs more buffers than it gains.
template <bool kSoon>
class PassedTiles : public CachedTiles {
 public:
  PassedTiles(const char* const (&panels)[2], const char* const (&next)[2], const Pass& pass)
      : CachedTiles(panels, pass.first_step) {
    const int64_t lines = pass.steps * kTileRows;
    const int64_t begin = lines * pass.idx / pass.count;
    const int64_t count = lines * (pass.idx + 1) / pass.count - begin;
    for (int panel = 0; panel < 2; ++panel)
      next_[panel] = next[panel] + pass.first_step * kTileBytes + begin * 64;
    step_lines_ = ((count << kShift) + pass.steps - 1) / pass.steps;
  }
  template <int part, int parts>
  DSMOE_HD void prepare(int panel, int64_t step) const {
    if constexpr (part == 0) {
      for (int64_t line = step * step_lines_ >> kShift; line < (step + 1) * step_lines_ >> kShift;
           ++line)
        _mm_prefetch(next_[panel] + line * 64, _MM_HINT_T1);
    }
    if constexpr (kSoon) CachedTiles::prepare<part, parts>(panel, step);
  }

 private:
  static constexpr int kShift = 16;
  const char* next_[2];
  int64_t step_lines_;  // in units of 2^-kShift
};

// Panels of integers, decoded two steps ahead of their use into a ring of `ring` tiles a panel: far
// enough that what was written has left the store buffer, so close that decoding runs beside the
// products.
template <Coding coding, int64_t ring>
class DecodedTiles {
 public:
  static constexpr int kPause = 0;  // decoding lies between
  static constexpr bool kRoomBeside = false;
  DecodedTiles(const char* const (&panels)[2], int64_t num_panels, int64_t steps, char* decoded)
      : panels_{panels[0], panels[1]}, num_panels_(num_panels), steps_(steps), decoded_(decoded) {}
  DSMOE_HD void start() const {
    for (int64_t step = 0; step < smaller(kSoonSteps, steps_); ++step) {
      for (int64_t panel = 0; panel < num_panels_; ++panel) decode<0, 1>(panel, step);
    }
  }
  DSMOE_HD const char* at(int panel, int64_t step) const { return decoded_ + place(panel, step); }
  template <int part, int parts>
  DSMOE_HD void prepare(int panel, int64_t step) const {
    if (step + kSoonSteps >= steps_) return;
    keep_order();
    decode<part, parts>(panel, step + kSoonSteps);
    keep_order();
  }

 private:
  template <int part, int parts>
  DSMOE_HD void decode(int64_t panel, int64_t step) const {
    decode_tile<coding, part, parts>(panels_[panel] + step * kGroupBytes<coding>,
                                     decoded_ + place(panel, step));
  }
  DSMOE_HD static int64_t place(int64_t panel, int64_t step) {
    return (panel * ring + step % ring) * kTileBytes;
  }
  const char* panels_[2];
  int64_t num_panels_;
  int64_t steps_;
  char* decoded_;
};

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

// What the users of AMX tiles share: sizes, configuration, order of memory accesses.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tile_config.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileK = 32;  // k of one step
using cpu::kTileBytes;
constexpr int64_t kTileSums = 256;

// GCC's tile intrinsics do not say that they read and write memory: what comes before this in the
// program is done before what comes behind it.
DSMOE_HD void keep_order() { __asm__ volatile("" : : : "memory"); }

class TilesConfigured {
 public:
  // rows: of accumulators and operands, at most 16
  DSMOE_HD explicit TilesConfigured(int64_t rows = kTileRows) {
    _tile_loadconfig(&cpu::kTileConfigs.of[rows]);
  }
  DSMOE_HD ~TilesConfigured() { _tile_release(); }
  TilesConfigured(const TilesConfigured&) = delete;
  TilesConfigured& operator=(const TilesConfigured&) = delete;
};

// 32 k of a row of tiles: `count` values from x, zeros behind them.
DSMOE_HD void put_tile_row(char* target, const char* x, int64_t count) {
  if (count == kTileK) {
    _mm512_store_si512(target, _mm512_loadu_si512(x));
    return;
  }
  std::memset(target, 0, 64);
  if (count > 0) std::memcpy(target, x, static_cast<size_t>(count) * 2);
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

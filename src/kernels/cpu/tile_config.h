// The one configuration of AMX tiles: data only, because code in a header that several instruction
// sets compile could run where it must not.
#pragma once

#include <cstdint>

namespace dsmoe::kernels::cpu {

constexpr int64_t kTileBytes = 1024;  // 16 rows of 64

struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Every tile is 16 rows of 64 bytes: accumulators 0-3 (two row tiles by two panels), operands 4 and
// 5, weights 6 and 7.
constexpr TileConfig kTileConfig{.palette = 1,
                                 .start_row = 0,
                                 .reserved = {},
                                 .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

}  // namespace dsmoe::kernels::cpu

// Configurations of AMX tiles: data only, because code in a header that several instruction
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

// Tiles of 64 bytes a row: accumulators 0-3 and operands 4 and 5 of `rows` rows, the others of 16.
consteval TileConfig tile_config(int rows) {
  TileConfig config{.palette = 1,
                    .start_row = 0,
                    .reserved = {},
                    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                    .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  return config;
}

// For 1 to 16 rows. Constants: GCC 12 believes that loading one reads 8 bytes, and drops stores to
// the rest of a local one.
struct TileConfigs {
  TileConfig of[17];
};
consteval TileConfigs make_tile_configs() {
  TileConfigs configs{};
  for (int rows = 1; rows <= 16; ++rows) configs.of[rows] = tile_config(rows);
  return configs;
}
constexpr TileConfigs kTileConfigs = make_tile_configs();

}  // namespace dsmoe::kernels::cpu

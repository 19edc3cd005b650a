// Attention by AMX tiles: keys and values of a page are panels, hence tiles as they lie.
#include "kernels/cpu/tier/attend.h"
#include "kernels/cpu/tier/tiles.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kValueSteps = kAttentionKeys / kTileK;

class TileProducts {
 public:
  static constexpr Element kType = Element::bf16;
  static constexpr int64_t kRowUnit = kTileRows;

  TileProducts(const AttendBlock& args, const Work& work)
      : args_(args),
        work_(work),
        row_tiles_(work.tile_rows / kTileRows),
        steps_((args.key_width + kTileK - 1) / kTileK),
        query_(reinterpret_cast<char*>(work.query)),
        weights_(reinterpret_cast<char*>(work.weights)) {
    for (int64_t r = 0; r < work.tile_rows; ++r) {
      const char* q = static_cast<const char*>(args.q);
      if (r < work.rows) q += args.rows[r] * args.key_width * 2;
      for (int64_t step = 0; step < steps_; ++step) {
        const int64_t left = r < work.rows ? args.key_width - step * kTileK : 0;
        put_tile_row(row_place(query_, steps_, r, step), q + step * kTileK * 2,
                     left < kTileK ? left : kTileK);
      }
    }
    for (int64_t t = 0; t < row_tiles_; ++t)
      std::memset(weights_ + t * kValueSteps * kTileBytes, 0, kValueSteps * kTileBytes);
  }

  void multiply_keys(const char* keys, int64_t) const {
    keep_order();
    for (int64_t t = 0; t < row_tiles_; ++t) {
      const char* x = query_ + t * steps_ * kTileBytes;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t step = 0; step < steps_; ++step) {
        const char* k = keys + step * kTileBytes;
        _tile_loadd(4, x + step * kTileBytes, 64);
        _tile_loadd(5, k, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, k + args_.key_panel_bytes, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, k + 2 * args_.key_panel_bytes, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, k + 3 * args_.key_panel_bytes, 64);
        _tile_dpbf16ps(3, 4, 5);
      }
      float* scores = work_.place(work_.scores, 0, t * kTileRows);
      const int64_t panel = work_.tile_rows * 16;
      _tile_stored(0, scores, 64);
      _tile_stored(1, scores + panel, 64);
      _tile_stored(2, scores + 2 * panel, 64);
      _tile_stored(3, scores + 3 * panel, 64);
    }
    keep_order();
  }

  void multiply_values(const char* values, int64_t) const {
    keep_order();
    for (int64_t t = 0; t < row_tiles_; ++t) {
      const char* x = weights_ + t * kValueSteps * kTileBytes;
      _tile_loadd(4, x, 64);
      _tile_loadd(5, x + kTileBytes, 64);
      int64_t p = 0;
      for (; p + 2 <= work_.dim_panels; p += 2) {
        const char* v = values + p * args_.value_panel_bytes;
        float* first = work_.place(work_.span, p, t * kTileRows);
        float* second = work_.place(work_.span, p + 1, t * kTileRows);
        _tile_loadd(0, first, 64);
        _tile_loadd(1, second, 64);
        _tile_loadd(6, v, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v + args_.value_panel_bytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, v + kTileBytes, 64);
        _tile_dpbf16ps(0, 5, 6);
        _tile_loadd(7, v + args_.value_panel_bytes + kTileBytes, 64);
        _tile_dpbf16ps(1, 5, 7);
        _tile_stored(0, first, 64);
        _tile_stored(1, second, 64);
      }
      if (p < work_.dim_panels) {
        const char* v = values + p * args_.value_panel_bytes;
        float* sums = work_.place(work_.span, p, t * kTileRows);
        _tile_loadd(0, sums, 64);
        _tile_loadd(6, v, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v + kTileBytes, 64);
        _tile_dpbf16ps(0, 5, 7);
        _tile_stored(0, sums, 64);
      }
    }
    keep_order();
  }

  void put_weights(int64_t r, const F32x16 (&s)[kKeyPanels]) const {
    for (int64_t step = 0; step < kValueSteps; ++step) {
      auto* row = reinterpret_cast<uint16_t*>(row_place(weights_, kValueSteps, r, step));
      store_bf16(row, s[2 * step]);
      store_bf16(row + 16, s[2 * step + 1]);
    }
  }

 private:
  // Operands are [row tiles][steps][16 rows][32 k].
  static char* row_place(char* tiles, int64_t steps, int64_t r, int64_t step) {
    return tiles + (r / kTileRows * steps + step) * kTileBytes + r % kTileRows * 64;
  }

  const AttendBlock& args_;
  const Work& work_;
  int64_t row_tiles_;
  int64_t steps_;  // of a key
  char* query_;
  char* weights_;
  TilesConfigured tiles_;
};

}  // namespace

void attend_bf16(const cpu::AttendBlock& args) { attend_rows<TileProducts>(args); }

}  // namespace dsmoe::kernels::DSMOE_TIER

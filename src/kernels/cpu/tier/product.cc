// Rows times panels by FMA chains: the micro-kernel over chunks that fit the caches.
#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kChunkRows = 8 * kMicroRows;
static_assert(kProductOperandFloats / kChunkRows >= kSegment,
              "a chunk holds at least one segment of k");
static_assert(kProductTileFloats / (kChunkRows * 16 * 2) >= 1,
              "a chunk holds at least one pair of panels");

bool moderate_rows(const ProductBlock& args, const Chunk& chunk) {
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const char* x = row_of_x(args, chunk.row_begin + r, 0);
    if (!moderate_values(reinterpret_cast<const uint16_t*>(x), args.k)) return false;
  }
  return true;
}

template <Element x_type, Element rule>
void multiply_chunk(const ProductBlock& args, const Chunk& chunk) {
  float* operand = args.scratch;
  float* acc = args.scratch + kProductOperandFloats;
  const int64_t tile_size = chunk.tile_rows * 16;
  const Streams streams = streams_of(args, chunk);
  float* second = acc + streams.steps * tile_size;
  start_chunk(args, chunk, streams, acc);
  // Whole segments, so that no chain is cut.
  const int64_t affordable = kProductOperandFloats / chunk.rows / kSegment * kSegment;
  const int64_t k_step = padded_to_block(args.k) <= affordable ? args.k : affordable;
  const RowBlocks blocks(chunk.rows);
  const bool moderate_x = args.coding != Coding::plain && moderate_rows(args, chunk);
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    widen_rows<x_type, rule>(
        blocks, count, operand, [&](int64_t r) __attribute__((always_inline)) {
          return row_of_x(args, chunk.row_begin + r, k);
        });
    for (int64_t step = 0; step < streams.steps; ++step) {
      const int64_t byte = step * args.panel_bytes + panel_byte(args, k);
      const int panels = step < streams.second ? 2 : 1;
      const MicroArgs micro{.x = operand,
                            .k = count,
                            .weight = {streams.base[0] + byte, streams.base[1] + byte},
                            .acc = {acc + step * tile_size, second + step * tile_size},
                            .moderate_x = moderate_x};
      if (args.coding == Coding::plain) {
        multiply_panels(rule, blocks, panels, micro);
      } else {
        multiply_coded_panels(args.coding, blocks, panels, micro);
      }
    }
  }
  finish_chunk(args, chunk, streams, acc);
}

template <Element x_type, Element rule>
void multiply(const ProductBlock& args) {
  for_each_chunk(args, kChunkRows, 1,
                 [&](const Chunk& chunk) { multiply_chunk<x_type, rule>(args, chunk); });
}

}  // namespace

void product(const ProductBlock& args) {
  if (args.row_begin >= args.row_end || args.panel_begin >= args.panel_end) return;
  if (args.weight_type == Element::bf16) return multiply<Element::bf16, Element::bf16>(args);
  if (args.x_type == Element::bf16) return multiply<Element::bf16, Element::f32>(args);
  multiply<Element::f32, Element::f32>(args);
}

}  // namespace dsmoe::kernels::DSMOE_TIER

// The tiers that are v4 with other products: of int4 by pairs of bf16; and of bf16, attention
// included, by AMX tiles.
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels {

namespace v4_bf16 {
namespace {

void product(const cpu::ProductBlock& args) {
  const bool empty = args.row_begin >= args.row_end || args.panel_begin >= args.panel_end;
  if (args.coding != cpu::Coding::int4 || empty) return v4::kTier.product(args);
  product_int4(args);
}

cpu::Tier over_v4() {
  cpu::Tier tier = v4::kTier;
  tier.product = product;
  return tier;
}

}  // namespace

const cpu::Tier kTier = over_v4();

}  // namespace v4_bf16

namespace amx {
namespace {

// Below this many rows a tile is mostly padding, and FMA chains read memory as fast.
constexpr int64_t kFewRows = 4;
// With integers of 4 bits the chains spend more on decoding than on multiplying.
constexpr int64_t kFewRowsInt4 = 2;

// Not the pairs of v4_bf16: VDPBF16PS takes these CPUs three times as long as an FMA.
void product(const cpu::ProductBlock& args) {
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t few = args.coding == cpu::Coding::int4 ? kFewRowsInt4 : kFewRows;
  const bool tiles = args.weight_type == cpu::Element::bf16 && (rows >= few || args.x_tiles) &&
                     args.panel_begin < args.panel_end;
  tiles ? product_bf16(args) : v4::kTier.product(args);
}

void attend(const cpu::AttendBlock& args) {
  const bool tiles = args.type == cpu::Element::bf16 && args.num_rows >= kFewRows;
  tiles ? attend_bf16(args) : v4::kTier.attend(args);
}

cpu::Tier over_v4() {
  cpu::Tier tier = v4::kTier;
  tier.product_cost = {.row_unit = 16, .stream_rows = 96, .worth_waking = 3e6};
  tier.tile_operands = true;
  tier.product = product;
  tier.attend = attend;
  return tier;
}

}  // namespace

const cpu::Tier kTier = over_v4();

}  // namespace amx
}  // namespace dsmoe::kernels

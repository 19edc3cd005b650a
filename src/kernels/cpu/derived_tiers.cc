// The tiers that are v4 with other products: of int4 by pairs of bf16, and of bf16 by AMX tiles.
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

// Below this many rows a tile is mostly padding, and the other kernels read memory as fast.
constexpr int64_t kFewRows = 4;

void product(const cpu::ProductBlock& args) {
  const int64_t rows = args.row_end - args.row_begin;
  if (args.weight_type != cpu::Element::bf16 || rows < kFewRows) return v4_bf16::product(args);
  product_bf16(args);
}

cpu::Tier over_v4() {
  cpu::Tier tier = v4::kTier;
  tier.product = product;
  return tier;
}

}  // namespace

const cpu::Tier kTier = over_v4();

}  // namespace amx
}  // namespace dsmoe::kernels

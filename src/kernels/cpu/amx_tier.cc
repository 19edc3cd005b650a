// The AMX tier: v4 with its bf16 products by tiles.
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::amx {
namespace {

// Below this many rows a tile is mostly padding, and the FMA kernel reads memory as fast.
constexpr int64_t kFewRows = 4;

void product(const cpu::ProductBlock& args) {
  const int64_t rows = args.row_end - args.row_begin;
  if (args.weight_type != cpu::Element::bf16 || rows < kFewRows) return v4::kTier.product(args);
  product_bf16(args);
}

cpu::Tier over_v4() {
  cpu::Tier tier = v4::kTier;
  tier.product = product;
  return tier;
}

}  // namespace

const cpu::Tier kTier = over_v4();

}  // namespace dsmoe::kernels::amx

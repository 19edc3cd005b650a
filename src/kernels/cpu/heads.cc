// Heads moved between layouts, and the shared experts' gate.
#include <cstring>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/products.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::cpu {
namespace {

// Tokens below which waking the other threads costs more than it saves.
int64_t token_grain(int64_t elements) {
  constexpr int64_t kElements = 16 * 1024;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, elements));
}

// One range of columns, which may change its type.
void move_range(const Tier& tier, DType from_type, const char* from, DType to_type, char* to,
                int64_t count) {
  if (from_type == to_type) {
    std::memmove(to, from, static_cast<std::size_t>(count) * tensor::size_of(to_type));
  } else if (to_type == DType::BF16) {
    tier.round(reinterpret_cast<const float*>(from), to, count);
  } else {
    tier.widen(from, reinterpret_cast<float*>(to), count);
  }
}

void move_token(const Tier& tier, const MoveColumns& args, int64_t token) {
  const auto place = [&](const Columns& columns, int64_t group) {
    const int64_t column = columns.begin + group * columns.step;
    return static_cast<char*>(columns.rows.data) +
           static_cast<std::size_t>(token * columns.rows.dim(1) + column) *
               tensor::size_of(columns.rows.dtype);
  };
  for (int64_t g = 0; g < args.groups; ++g) {
    move_range(tier, args.from.rows.dtype, place(args.from, g), args.to.rows.dtype,
               place(args.to, g), args.width);
  }
}

}  // namespace

void move_columns(const Tier& tier, const Context& context, const MoveColumns& args) {
  parallel_for(*context.pool, args.from.rows.dim(0), token_grain(args.groups * args.width),
               [&](int64_t begin, int64_t end) {
                 if (args.adds()) {
                   MoveColumns part = args;
                   part.from.rows = args.from.rows.rows(begin, end);
                   part.to.rows = args.to.rows.rows(begin, end);
                   return ref::move_columns(context, part);
                 }
                 for (int64_t t = begin; t < end; ++t) move_token(tier, args, t);
               });
}

void shared_gate_forward(const Tier& tier, const Context& context, const SharedGateForward& args) {
  ProductBlock block = block_of(args.weight, 0);
  block.x = args.x.data;
  block.x_type = element_of(args.x.dtype);
  block.x_stride = args.x.dim(1);
  block.row_end = args.x.dim(0);
  block.out = args.gate.data;
  block.out_stride = 1;
  run_product(tier, context, block);
  tier.sigmoid(args.gate.as<float>(), args.x.dim(0));
}

}  // namespace dsmoe::kernels::cpu

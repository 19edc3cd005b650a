// Projections and experts: lists of products, divided over the threads by what they cost.
#include "kernels/cpu/products.h"
#include "kernels/cpu/ops.h"

namespace dsmoe::kernels::cpu {
namespace {

// Rows of one unit of work. Enough that streaming the panel again for the next rows costs nothing.
constexpr int64_t kSplitRows = 384;
// Bytes that take as long as the work around a panel; also the cost of a panel without k.
constexpr int64_t kPanelOverhead = 512;

int64_t row_parts(const ProductBlock& whole) {
  return (whole.row_end - whole.row_begin + kSplitRows - 1) / kSplitRows;
}

// visit(block, cost of one panel) for each part of the rows.
template <class Visit>
void for_each_part(const ProductCost& unit, const ProductBlock& whole, Visit&& visit) {
  const int64_t parts = row_parts(whole);
  const int64_t rows = whole.row_end - whole.row_begin;
  for (int64_t part = 0; part < parts; ++part) {
    ProductBlock block = whole;
    block.row_begin = whole.row_begin + rows * part / parts;
    block.row_end = whole.row_begin + rows * (part + 1) / parts;
    const int64_t counted = round_up(block.row_end - block.row_begin, unit.row_unit);
    const double cost = static_cast<double>(whole.panel_bytes + kPanelOverhead) *
                        (static_cast<double>(counted) + unit.stream_rows);
    visit(block, whole.epilogue == Epilogue::swiglu ? 2 * cost : cost);
  }
}

ProductBlock expert_block(const ExpertFamily& family, const WeightStack& weight, int64_t expert) {
  const int32_t* offsets = family.offsets.as<int32_t>();
  ProductBlock block = block_of(weight, expert);
  block.row_begin = offsets[expert];
  block.row_end = offsets[expert + 1];
  block.x_type = block.weight_type;
  block.x_stride = weight.k;
  return block;
}

// visit(block) for every expert that has rows.
template <class MakeBlock>
auto each_expert(std::span<const ExpertFamily> families, MakeBlock make_block) {
  return [families, make_block](auto&& visit) {
    for (const ExpertFamily& family : families) {
      const int32_t* offsets = family.offsets.as<int32_t>();
      for (int64_t expert = 0; expert < family.gate.stack.count; ++expert) {
        if (offsets[expert] == offsets[expert + 1]) continue;
        const ProductBlock block = make_block(family, expert);
        if (block.n > 0) visit(block);
      }
    }
  };
}

// Runs every product of `each_block(visit)` in one parallel region.
template <class EachBlock>
void run_products(const Tier& tier, const Context& context, EachBlock&& each_block) {
  double total = 0;
  each_block([&](const ProductBlock& whole) {
    for_each_part(tier.product_cost, whole, [&](const ProductBlock& block, double cost) {
      total += static_cast<double>(block.panel_end) * cost;
    });
  });
  run_shares(context, total, tier.product_cost.worth_waking, [&](Share& share) {
    each_block([&](const ProductBlock& whole) {
      for_each_part(tier.product_cost, whole, [&](ProductBlock block, double cost) {
        const Range panels = share.take(whole.panel_end, cost);
        if (panels.begin >= panels.end) return;
        block.panel_begin = panels.begin;
        block.panel_end = panels.end;
        block.scratch = thread_scratch(kProductScratch);
        tier.product(block);
      });
    });
  });
}

}  // namespace

ProductBlock block_of(const WeightStack& weight, int64_t matrix_idx) {
  DSMOE_CHECK(weight.layout == WeightLayout::panels, "the CPU tiers need weights in panels");
  ProductBlock block;
  block.weight_type = element_of(weight.dtype);
  block.weight[0] = weight.matrix(matrix_idx);
  block.k = weight.k;
  block.n = weight.n;
  block.coding = coding_of(weight.coding);
  block.panel_bytes = panel_bytes(weight.dtype, weight.coding, weight.k);
  block.panel_end = round_up(weight.n, kPanelWidth) / kPanelWidth;
  return block;
}

void run_product(const Tier& tier, const Context& context, const ProductBlock& block) {
  run_products(tier, context, [&](auto&& visit) {
    if (block.row_begin < block.row_end && block.n > 0) visit(block);
  });
}

void matmul_forward(const Tier& tier, const Context& context, const MatmulForward& args) {
  ProductBlock block = block_of(args.weight.stack, 0);
  block.x = args.x.data;
  block.x_type = element_of(args.operand);
  block.x_stride = args.weight.stack.k;
  block.row_end = args.x.dim(0);
  block.epilogue = args.store == Store::accumulate ? Epilogue::accumulate : Epilogue::assign;
  block.bias = args.bias ? args.bias.as<float>() : nullptr;
  block.out = args.out.data;
  block.out_stride = args.weight.stack.n;
  run_product(tier, context, block);
}

void head_products(const Tier& tier, const Context& context, const HeadProducts& args) {
  const int64_t heads = args.x.dim(1);
  const auto size = tensor::size_of(args.x.dtype);
  run_products(tier, context, [&](auto&& visit) {
    for (int64_t head = 0; head < heads; ++head) {
      ProductBlock block = block_of(args.weight, head);
      block.x = static_cast<const char*>(args.x.data) +
                static_cast<std::size_t>(head * args.weight.k) * size;
      block.x_type = block.weight_type;
      block.x_stride = heads * args.weight.k;
      block.row_end = args.x.dim(0);
      block.epilogue = Epilogue::round;
      block.out =
          static_cast<char*>(args.out.data) + static_cast<std::size_t>(head * args.weight.n) * size;
      block.out_stride = heads * args.weight.n;
      if (block.row_end > 0) visit(block);
    }
  });
}

void experts_up_forward(const Tier& tier, const Context& context, const ExpertsUpForward& args) {
  const auto make_block = [&](const ExpertFamily& family, int64_t expert) {
    ProductBlock block = expert_block(family, family.gate.stack, expert);
    block.weight[1] = family.up.stack.matrix(expert);
    block.x = family.x.x.data;
    block.row_index = family.x.indices();
    block.epilogue = Epilogue::swiglu;
    block.out = family.activation.data;
    block.kept[0] = family.gate_product.data;
    block.kept[1] = family.up_product.data;
    block.out_stride = family.gate.stack.n;
    return block;
  };
  run_products(tier, context, each_expert(args.families, make_block));
}

void experts_down_forward(const Tier& tier, const Context& context,
                          const ExpertsDownForward& args) {
  const auto make_block = [&](const ExpertFamily& family, int64_t expert) {
    ProductBlock block = expert_block(family, family.down.stack, expert);
    block.x = family.activation.data;
    block.epilogue = Epilogue::round;
    block.out = family.out.data;
    block.out_stride = family.down.stack.n;
    return block;
  };
  run_products(tier, context, each_expert(args.families, make_block));
}

}  // namespace dsmoe::kernels::cpu

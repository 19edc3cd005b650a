// Experts and dense projections as grouped products.
#include <algorithm>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/product.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int64_t kFewRowsPerExpert = 220;

void run(const Context& context, const Product& product) {
  if (product.num_groups == 0) return;
  if (product_fits_hopper(context, product)) return launch_product(context, product);
  launch_product_portable(context, product);
}

// The shared experts, which are one matrix over all tokens.
bool is_shared(const ExpertFamily& family) { return family.gate.stack.count == 1; }
bool is_shared(const ExpertFamilyBackward& family) {
  return family.gate_transposed.stack.count == 1;
}

// Two families to a launch. The shared experts come first: their tiles are the even ones.
template <class Family, class Fill>
void run_families(const Context& context, std::span<const Family> families, Epilogue epilogue,
                  Fill&& fill) {
  for (std::size_t begin = 0; begin < families.size(); begin += 2) {
    Product product{.epilogue = epilogue};
    const auto pair = families.subspan(begin, std::min<std::size_t>(2, families.size() - begin));
    for (const bool shared : {true, false}) {
      for (const Family& family : pair) {
        if (is_shared(family) == shared) product.group[product.num_groups++] = fill(family);
      }
    }
    run(context, product);
  }
}

ProductGroup up_group(const ExpertFamily& family) {
  return {.weight = family.gate.stack,
          .second = family.up.stack,
          .x = family.x,
          .offsets = family.offsets,
          .out = family.activation,
          .gate_out = family.gate_product,
          .up_out = family.up_product};
}
ProductGroup down_group(const ExpertFamily& family, int64_t first_output = 0) {
  return {.weight = family.down.stack,
          .x = {family.activation},
          .offsets = family.offsets,
          .out = family.out,
          .first_output = first_output};
}

}  // namespace

Attempt experts_forward(const Context& context, const ExpertsForward& args) {
  if (args.families.empty() || args.families.size() > 2) return {"there are not 1 or 2 families"};
  Product up{.epilogue = Epilogue::swiglu};
  Product down{.epilogue = Epilogue::round};
  for (const bool shared : {true, false}) {
    for (const ExpertFamily& family : args.families) {
      if (is_shared(family) != shared) continue;
      up.group[up.num_groups++] = up_group(family);
      down.group[down.num_groups++] = down_group(family);
    }
  }
  if (!product_fits_hopper(context, up) || !product_fits_hopper(context, down))
    return {"the device or the sizes are not those of the Hopper kernels"};
  if (!launch_experts(context, up, down)) return {"experts have too few or too many rows"};
  return {};
}

void experts_up_forward(const Context& context, const ExpertsUpForward& args) {
  run_families(context, args.families, Epilogue::swiglu, up_group);
}

void experts_down_forward(const Context& context, const ExpertsDownForward& args) {
  run_families(context, args.families, Epilogue::round,
               [&](const ExpertFamily& family) { return down_group(family, args.columns.begin); });
}

namespace {

void check_transposes(const ExpertFamilyBackward& family) {
  for (const WeightStack& stack :
       {family.gate_transposed.stack, family.up_transposed.stack, family.down_transposed.stack}) {
    DSMOE_CHECK(stack.layout == WeightLayout::column_major,
                "the experts' backward pass on CUDA reads weights as they lie: transpose_of");
  }
}

}  // namespace

void experts_down_backward(const Context& context, const ExpertsDownBackward& args) {
  // Partial sums of all families' rows; a family that has a gate takes its part.
  std::size_t floats = 0;
  const auto partials = [](const ExpertFamilyBackward& family) {
    return family.gate_of_row ? static_cast<std::size_t>(family.activation.dim(0)) *
                                    static_cast<std::size_t>((family.activation.dim(1) + 15) / 16)
                              : 0;
  };
  for (const ExpertFamilyBackward& family : args.families) floats += partials(family);
  float* const all = floats > 0 ? static_cast<float*>(scratch_of(context, floats * 4)) : nullptr;
  const auto partial_sums = [&](const ExpertFamilyBackward& wanted) {
    float* place = all;
    for (const ExpertFamilyBackward& family : args.families) {
      if (family.activation.data == wanted.activation.data) break;
      place += partials(family);
    }
    return place;
  };
  run_families(context, args.families, Epilogue::swiglu_backward,
               [&](const ExpertFamilyBackward& family) {
                 check_transposes(family);
                 ProductGroup group{.weight = family.down_transposed.stack,
                                    .x = family.d_out,
                                    .offsets = family.offsets,
                                    .out = family.d_up_product,
                                    .gate_out = family.d_gate_product,
                                    .up_out = family.up_product};
                 group.swiglu = {
                     .gate_of_row = family.gate_of_row ? family.gate_of_row.as<float>() : nullptr,
                     .activation = family.activation.data,
                     .gate_product = family.gate_product.data,
                     .up_product = family.up_product.data,
                     .scaled_activation = family.scaled_activation.data,
                     .d_gate_product = family.d_gate_product.data,
                     .d_up_product = family.d_up_product.data,
                     .partial_sums = family.gate_of_row ? partial_sums(family) : nullptr};
                 return group;
               });
  for (const ExpertFamilyBackward& family : args.families) {
    if (family.gate_of_row) add_partial_sums(context, family, partial_sums(family));
  }
}

void experts_up_backward(const Context& context, const ExpertsUpBackward& args) {
  run_families(context, args.families, Epilogue::round, [&](const ExpertFamilyBackward& family) {
    check_transposes(family);
    return ProductGroup{.weight = family.gate_transposed.stack,
                        .second = family.up_transposed.stack,
                        .x = {family.d_gate_product},
                        .second_x = family.d_up_product,
                        .offsets = family.offsets,
                        .out = family.d_x};
  });
}

// Rows that the copy engine can read are worth a pass that lays them in order; a single product of
// few rows gathers them as fast by itself (docs/performance.md).
Attempt dispatch_rows(const Context& context, const DispatchRows& args) {
  const TensorView& x = args.rows.x;
  if (!is_hopper() || x.dtype != DType::BF16 || x.dim(1) % 8 != 0 || !is_aligned(x.data) ||
      !is_aligned(args.out.data))
    return {"the device or the sizes are not those of the copy engine"};
  const int64_t experts = args.offsets.dim(0) - 1;
  if (args.readers < 2 && args.rows.count() <= kFewRowsPerExpert * experts)
    return {"one product of few rows gathers them as fast"};
  gather_rows(context, {.rows = args.rows,
                        .offsets = args.offsets,
                        .row_of_slot = args.row_of_slot,
                        .columns = args.columns,
                        .out = args.out});
  return {};
}

// The kernels for shapes that the copy engine can read.
bool takes_parts(const Context&, const TakesParts& shape) {
  return is_hopper() && shape.operand == DType::BF16 && shape.hidden % 8 == 0 &&
         shape.width % 8 == 0;
}

Attempt qkv_forward(const Context& context, const QkvForward& args) {
  const int64_t tokens = args.x.dim(0);
  const int64_t head_dim = args.q.dim(2);
  if (args.q.dtype != DType::BF16 || head_dim % 64 != 0 || tokens == 0 ||
      args.kv.shape.layout != WeightLayout::row_major)
    return {"it cannot read these types or sizes"};
  Product product{.epilogue = Epilogue::rope, .num_groups = 1};
  TensorView out = args.q;
  out.shape = {tokens, args.weight.n};
  product.group[0] = {.weight = args.weight,
                      .x = {args.x},
                      .bias = args.bias,
                      .out = out,
                      .rope = rope_store_of(args)};
  if (!product_fits_hopper(context, product))
    return {"the device or the sizes are not those of the Hopper kernels"};
  if (!rope_fits(context, product)) return {"few rows are faster in two launches"};
  launch_product(context, product);
  return {};
}

void matmul_forward(const Context& context, const MatmulForward& args) {
  const bool in_place = !args.base || args.base.data == args.out.data;
  const bool row_major = args.weight.stack.layout == WeightLayout::row_major;
  if (row_major && !args.rounded && in_place && few_rows_matmul(context, args)) return;
  const bool rounds = args.rounded && args.rounded.dtype == DType::BF16;
  Product product{.epilogue = rounds ? Epilogue::round : Epilogue::dense,
                  .accumulate = args.store == Store::accumulate,
                  .num_groups = 1};
  product.group[0] = {.weight = args.weight.stack,
                      .x = {args.x},
                      .bias = args.bias,
                      .out = args.rounded ? args.rounded : args.out,
                      .base = args.base};
  run(context, product);
}

}  // namespace dsmoe::kernels::cuda

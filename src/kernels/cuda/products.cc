// Experts and dense projections as grouped products.
#include <algorithm>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/product.h"

namespace dsmoe::kernels::cuda {
namespace {

void run(const Context& context, const Product& product) {
  if (product.num_groups == 0) return;
  if (product_fits_hopper(product)) return launch_product(context, product);
  launch_product_portable(context, product);
}

// Two families to a launch. Families over all tokens (the shared experts) come first: their tiles
// are the even ones.
template <class Fill>
void run_families(const Context& context, std::span<const ExpertFamily> families, Epilogue epilogue,
                  Fill&& fill) {
  for (std::size_t begin = 0; begin < families.size(); begin += 2) {
    Product product{.epilogue = epilogue};
    const auto pair = families.subspan(begin, std::min<std::size_t>(2, families.size() - begin));
    for (const bool gathered : {false, true}) {
      for (const ExpertFamily& family : pair) {
        if (static_cast<bool>(family.token_of_row) == gathered)
          product.group[product.num_groups++] = fill(family);
      }
    }
    run(context, product);
  }
}

}  // namespace

void experts_up_forward(const Context& context, const ExpertsUpForward& args) {
  run_families(context, args.families, Epilogue::swiglu, [&](const ExpertFamily& family) {
    return ProductGroup{.weight = family.gate,
                        .second = family.up,
                        .x = args.x,
                        .offsets = family.offsets,
                        .token_of_row = family.token_of_row,
                        .bias = {},
                        .out = family.activation,
                        .gate_out = family.gate_product,
                        .up_out = family.up_product};
  });
}

void experts_down_forward(const Context& context, const ExpertsDownForward& args) {
  run_families(context, args.families, Epilogue::round, [&](const ExpertFamily& family) {
    return ProductGroup{.weight = family.down,
                        .second = {},
                        .x = family.activation,
                        .offsets = family.offsets,
                        .token_of_row = {},
                        .bias = {},
                        .out = family.out,
                        .gate_out = {},
                        .up_out = {}};
  });
}

void matmul_forward(const Context& context, const MatmulForward& args) {
  if (few_rows_matmul(context, args)) return;
  Product product{
      .epilogue = Epilogue::dense, .accumulate = args.store == Store::accumulate, .num_groups = 1};
  product.group[0] = {.weight = args.weight,
                      .second = {},
                      .x = args.x,
                      .offsets = {},
                      .token_of_row = {},
                      .bias = args.bias,
                      .out = args.out,
                      .gate_out = {},
                      .up_out = {}};
  run(context, product);
}

}  // namespace dsmoe::kernels::cuda

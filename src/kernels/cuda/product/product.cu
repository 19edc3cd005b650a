// Describe, choose, launch: tensor maps and the tile variant of a grouped product.
#include "kernels/cuda/product/product.h"

#include <iterator>

#include "kernels/cuda/moe/experts_few_rows.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/product_variants.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

// Counters of launches in flight: two ints each, taken in turn. A kernel leaves its own at zero, so
// a captured graph may replay, and launches of a stream that overlap do not share one unless 256
// others were issued between them.
constexpr int kCounterSets = 256;

struct ProductState {
  DeviceArray<int32_t> counters{kCounterSets * 2};
  unsigned turn = 0;
  int forced_variant = kBySize;
  // The offsets of the last gathered product, and how many launches the stream had seen then. A
  // product that follows immediately may read the same offsets early: its predecessor waited for
  // their writer before it let anyone start.
  struct {
    const void* offsets[2];
    uint64_t launches;
  } last_gathered{};
};

bool offsets_final(const Context& context, const ProductParameters& parameters) {
  const auto& last = state_of<ProductState>(context).last_gathered;
  if (last.launches == 0 || last.launches != own_stream(context).launches) return false;
  for (int f = 0; f < parameters.num_families; ++f) {
    const void* own = parameters.family[f].offsets;
    if (own != nullptr && own != last.offsets[0] && own != last.offsets[1]) return false;
  }
  return true;
}

uint64_t distance(const WeightStack& a, const WeightStack& b) {
  const auto first = reinterpret_cast<uintptr_t>(a.data);
  const auto second = reinterpret_cast<uintptr_t>(b.data);
  return first < second ? second - first : first - second;
}

CUtensorMap stack_map(const WeightStack& stack, uint32_t tile_weights) {
  const auto n = static_cast<uint64_t>(stack.n);
  const auto k = static_cast<uint64_t>(stack.k);
  return tensor_map({.base = stack.data,
                     .rank = 3,
                     .sizes = {k, n, static_cast<uint64_t>(stack.count)},
                     .strides = {k * 2, n * k * 2},
                     .box = {64, tile_weights, 1}});
}

bool is_transposed(const WeightStack& stack) { return stack.layout == WeightLayout::column_major; }

// Column-major: one copy brings all of a tile's columns where they are blocks of 64; otherwise one
// copy for each 64.
bool in_blocks(const ProductGroup& group) {
  return group.weight.n % 64 == 0 && group.first_output % 64 == 0;
}
CUtensorMap transposed_map(const WeightStack& stack, bool blocks, uint32_t tile_weights) {
  const auto n = static_cast<uint64_t>(stack.n);
  const auto k = static_cast<uint64_t>(stack.k);
  const auto count = static_cast<uint64_t>(stack.count);
  if (blocks) {
    return tensor_map({.base = stack.data,
                       .rank = 4,
                       .sizes = {64, k, n / 64, count},
                       .strides = {n * 2, 128, n * k * 2},
                       .box = {64, 64, tile_weights / 64, 1}});
  }
  return tensor_map({.base = stack.data,
                     .rank = 3,
                     .sizes = {n, k, count},
                     .strides = {n * 2, n * k * 2},
                     .box = {64, 64, 1}});
}

CUtensorMap row_map(const TensorView& x, int64_t k, uint32_t row_box) {
  const auto columns = static_cast<uint64_t>(k);
  return tensor_map({.base = x.data,
                     .rank = 2,
                     .sizes = {columns, static_cast<uint64_t>(x.dim(0))},
                     .strides = {columns * 2},
                     .box = {64, row_box}});
}

CUtensorMap weight_map(const ProductGroup& group, Epilogue epilogue, int tile_weights) {
  const auto n = static_cast<uint64_t>(group.weight.n);
  const auto k = static_cast<uint64_t>(group.weight.k);
  const auto count = static_cast<uint64_t>(group.weight.count);
  const auto weights = static_cast<uint32_t>(tile_weights);
  if (epilogue == Epilogue::rope) {
    // Eight rows of a head's first half, the eight they turn with, and so on: a thread's sums then
    // hold both.
    const auto half = static_cast<uint64_t>(group.rope.head_dim / 2);
    return tensor_map({.base = group.weight.data,
                       .rank = 5,
                       .sizes = {k, 8, 2, half / 8, n / (2 * half)},
                       .strides = {k * 2, half * k * 2, 8 * k * 2, 2 * half * k * 2},
                       .box = {64, 8, 2, 4, 1}});
  }
  if (is_transposed(group.weight)) return transposed_map(group.weight, in_blocks(group), weights);
  if (epilogue != Epilogue::swiglu) return stack_map(group.weight, weights);
  // Eight rows of one matrix, the same eight of the other, and so on: a thread's sums then hold a
  // gate and its up.
  return tensor_map(
      {.base = group.weight.data < group.second.data ? group.weight.data : group.second.data,
       .rank = 5,
       .sizes = {k, 8, 2, n / 8, count},
       .strides = {k * 2, distance(group.weight, group.second), 8 * k * 2, n * k * 2},
       .box = {64, 8, 2, weights / 16, 1}});
}

ProductFamily describe(const ProductGroup& group, Epilogue epilogue, int variant) {
  const int tile_weights = kVariantWeights[variant];
  ProductFamily family{};
  family.weight = weight_map(group, epilogue, tile_weights);
  const uint32_t row_box = kVariantRows[variant] >= 128 ? 64 : 8;
  const auto tile_rows = static_cast<uint32_t>(kVariantRows[variant]);
  family.x = row_map(group.x.x, group.weight.k, row_box);
  family.x_tile = row_map(group.x.x, group.weight.k, tile_rows);
  family.segments = 1;
  if (epilogue == Epilogue::round && group.second) {
    family.second_weight =
        transposed_map(group.second, in_blocks(group), static_cast<uint32_t>(tile_weights));
    family.second_x = row_map(group.second_x, group.second.k, row_box);
    family.second_x_tile = row_map(group.second_x, group.second.k, tile_rows);
    family.segments = 2;
  }
  if (epilogue == Epilogue::dense || epilogue == Epilogue::round) {
    const bool rounded = epilogue == Epilogue::round;
    const auto n = static_cast<uint64_t>(group.out.dim(1));
    const uint32_t box = rounded ? 64 : 32;
    family.out_map = tensor_map({.base = group.out.data,
                                 .dtype = rounded ? DType::BF16 : DType::F32,
                                 .rank = 2,
                                 .sizes = {n, static_cast<uint64_t>(group.out.dim(0))},
                                 .strides = {n * (rounded ? 2 : 4)},
                                 .box = {box, box}});
  }
  family.swiglu = group.swiglu;
  family.rope = group.rope;
  family.x_rows = group.x.x.data;
  family.offsets = group.offsets ? group.offsets.as<int32_t>() : nullptr;
  family.token_of_row = group.x.indices();
  family.out = group.out.data;
  family.base = static_cast<const float*>(group.base ? group.base.data : group.out.data);
  family.gate_out = group.gate_out.data;
  family.up_out = group.up_out.data;
  family.bias = group.bias ? group.bias.as<float>() : nullptr;
  family.count = static_cast<int32_t>(group.weight.count);
  family.rows = static_cast<int32_t>(group.out.dim(0));
  family.n = static_cast<int32_t>(group.out.dim(1));
  family.first_output = static_cast<int32_t>(group.first_output);
  family.k = static_cast<int32_t>(group.weight.k);
  family.in_blocks = in_blocks(group);
  const int64_t weight_rows = group.out.dim(1) * (epilogue == Epilogue::swiglu ? 2 : 1);
  family.weight_tiles = static_cast<int32_t>((weight_rows + tile_weights - 1) / tile_weights);
  // The smaller side runs fastest: the second-level cache keeps it while the other passes once.
  family.rows_inside = family.offsets == nullptr && family.rows < weight_rows;
  family.up_first = group.second.data != nullptr && group.second.data < group.weight.data;
  return family;
}

// Chooses by the rows that an expert gets on average, in the family with the most weights; the
// others' tiles fit any variant. Borders as measured on an H200 (docs/performance.md).
int choose_variant(const Context& context, const Product& product) {
  const bool transposed = is_transposed(product.group[0].weight);
  if (const int forced = state_of<ProductState>(context).forced_variant; forced >= 0)
    return transposed && kVariantRows[forced] < kLeastRowsTransposed ? kRows128 : forced;
  int64_t most_weights = -1;
  double rows_per_expert = 0;
  int64_t most_rows = 0;
  for (int g = 0; g < product.num_groups; ++g) {
    const ProductGroup& group = product.group[g];
    most_rows = std::max(most_rows, group.out.dim(0) / std::max<int64_t>(1, group.weight.count));
    if (group.weight.count * group.weight.n * group.weight.k > most_weights) {
      most_weights = group.weight.count * group.weight.n * group.weight.k;
      rows_per_expert =
          static_cast<double>(group.out.dim(0)) / static_cast<double>(group.weight.count);
    }
  }
  const bool swiglu = product.epilogue == Epilogue::swiglu;
  if (product.epilogue == Epilogue::swiglu_backward)
    return rows_per_expert <= 112 ? kRows128 : kRows128InTurn;
  if (transposed) return rows_per_expert <= 112 ? kRows128 : kRows256;
  if (most_rows <= 4) return kRows8;
  // A few rows of one matrix: tiles of 128 weights would leave most multiprocessors idle, and what
  // small tiles read several times comes out of the second-level cache.
  const ProductGroup& only = product.group[0];
  if (product.num_groups == 1 && only.weight.count == 1 && most_rows <= 32 &&
      only.weight.n * (swiglu ? 2 : 1) <= 64 * num_multiprocessors() / 2) {
    return kRows8;
  }
  if (rows_per_expert <= 12) return kRows64;
  if (rows_per_expert <= 112) return swiglu ? kRows128Wide : kRows128;
  if (!swiglu) return kRows256;
  // 256 x 128 halves the rows that are gathered on the way. Laid out, 128 x 256 asks less of shared
  // memory, where the last tile of an expert is a small part of its rows.
  const bool gathered = static_cast<bool>(product.group[product.num_groups - 1].x.index);
  return rows_per_expert > 220 && (gathered || rows_per_expert < 800) ? kRows128Wide : kRows256;
}

using LaunchVariant = void (*)(const Context&, const VariantLaunch&, const ProductParameters&);
constexpr LaunchVariant launch_variant_table[] = {
    launch_variant<Rows8>,       launch_variant<Rows64>,  launch_variant<Rows128>,
    launch_variant<Rows128Wide>, launch_variant<Rows256>, launch_variant<Rows128InTurn>};
static_assert(std::size(launch_variant_table) == std::size(kVariantRows));

}  // namespace

void prepare_products(const Context& context) { state_of<ProductState>(context); }

int32_t* next_counters(const Context& context) {
  auto& state = state_of<ProductState>(context);
  return state.counters.data() + 2 * (state.turn++ % kCounterSets);
}

void force_product_variant(const Context& context, int variant) {
  state_of<ProductState>(context).forced_variant = variant;
}
int num_product_variants() { return static_cast<int>(std::size(kVariantRows)); }

bool product_fits_hopper(const Context& context, const Product& product) {
  if (!is_hopper() || state_of<ProductState>(context).forced_variant == kPortableVariant)
    return false;
  int64_t experts = 0;
  for (int g = 0; g < product.num_groups; ++g) {
    const ProductGroup& group = product.group[g];
    if (group.weight.dtype != DType::BF16 || group.weight.n % 8 != 0 || group.weight.k % 8 != 0 ||
        group.out.dim(1) % 8 != 0)
      return false;
    if (!is_aligned(group.weight.data) || !is_aligned(group.x.x.data) ||
        !is_aligned(group.out.data))
      return false;
    if (!is_aligned(group.bias.data) || !is_aligned(group.base.data)) return false;
    if (!is_aligned(group.gate_out.data) || !is_aligned(group.up_out.data)) return false;
    if (!is_aligned(group.swiglu.activation) || !is_aligned(group.swiglu.gate_product))
      return false;
    if (!is_aligned(group.swiglu.scaled_activation)) return false;
    if (!is_aligned(group.second.data) || !is_aligned(group.second_x.data)) return false;
    if (group.out.dim(0) >= (1 << 30) ||
        group.x.x.dim(0) * (group.weight.k / 8) >= (int64_t{1} << 32))
      return false;
    if (product.epilogue == Epilogue::swiglu &&
        distance(group.weight, group.second) >= (uint64_t{1} << 40))
      return false;
    experts += group.weight.count;
  }
  return experts <= kMaxExperts;
}

void launch_product(const Context& context, const Product& product) {
  VariantLaunch how{.variant = choose_variant(context, product),
                    .epilogue = product.epilogue,
                    .transposed = is_transposed(product.group[0].weight)};
  ProductParameters parameters{};
  for (int g = 0; g < product.num_groups; ++g) {
    if (product.group[g].out.dim(0) == 0) continue;
    parameters.family[parameters.num_families++] =
        describe(product.group[g], product.epilogue, how.variant);
    how.gathered = how.gathered || product.group[g].x.index;
  }
  if (parameters.num_families == 0) return;
  parameters.accumulate = product.accumulate;
  parameters.counters = next_counters(context);
  parameters.offsets_final = offsets_final(context, parameters);
  launch_variant_table[how.variant](context, how, parameters);
  if (how.gathered) {
    state_of<ProductState>(context).last_gathered = {
        {parameters.family[0].offsets, parameters.family[1].offsets}, own_stream(context).launches};
  }
}

bool rope_fits(const Context& context, const Product& product) {
  return choose_variant(context, product) == kRows256;
}

bool launch_experts(const Context& context, const Product& up, const Product& down) {
  if (choose_variant(context, up) != kRows64 || choose_variant(context, down) != kRows64)
    return false;
  ExpertsParameters parameters{};
  for (int g = 0; g < up.num_groups; ++g) {
    if (up.group[g].out.dim(0) == 0) continue;
    const int f = parameters.up.num_families++;
    parameters.up.family[f] = describe(up.group[g], up.epilogue, kRows64);
    parameters.down.family[f] = describe(down.group[g], down.epilogue, kRows64);
  }
  if (parameters.up.num_families == 0) return false;
  parameters.up.counters = next_counters(context);
  launch_experts_few_rows(context, parameters);
  return true;
}

}  // namespace dsmoe::kernels::cuda

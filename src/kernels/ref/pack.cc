// Conversion of stored elements, and their placement in a weight layout.
#include <algorithm>
#include <cstring>

#include "kernels/elements.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::ref {

namespace {

// The integers of one group of a row: int8 one by one; int4 word by word, of which the last may be
// stored shorter.
void place_group(WeightCoding coding, const char* integers, int64_t bytes, char* target) {
  if (coding == WeightCoding::int8) {
    for (int64_t i = 0; i < bytes; ++i) target[i * kPanelWidth] = integers[i];
    return;
  }
  for (; bytes > 0; bytes -= 4, integers += 4, target += 4 * kPanelWidth) {
    uint32_t word = 0;
    std::memcpy(&word, integers, static_cast<std::size_t>(std::min<int64_t>(bytes, 4)));
    word = int4_word(word);
    std::memcpy(target, &word, sizeof word);
  }
}

void pack_integers(const PackWeight& args) {
  const WeightStack& target = args.target;
  auto* matrix = static_cast<char*>(target.matrix(args.matrix_idx));
  const int64_t row_bytes = args.source.dim(1);
  const int64_t groups = args.scale.dim(1);
  const int64_t group_bytes = tensor::coded_row_bytes(target.coding, tensor::kGroupSize);
  for (int64_t row = 0; row < args.source.dim(0); ++row) {
    const int64_t n = args.row_begin + row;
    const auto* integers = static_cast<const char*>(args.source.data) + row * row_bytes;
    const auto* scales = static_cast<const char*>(args.scale.data) + row * groups * 2;
    for (int64_t group = 0; group < groups; ++group) {
      std::memcpy(matrix + scale_offset(target.coding, target.k, n, group), scales + 2 * group, 2);
      const int64_t begin = group * group_bytes;
      place_group(target.coding, integers + begin, std::min(group_bytes, row_bytes - begin),
                  matrix + integer_offset(target.coding, target.k, n, group * tensor::kGroupSize));
    }
  }
}

}  // namespace

void pack_weight(const Context&, const PackWeight& args) {
  const WeightStack& target = args.target;
  if (target.coding != WeightCoding::plain) return pack_integers(args);
  void* matrix = target.matrix(args.matrix_idx);
  const int64_t columns = args.source.dim(1);
  for (int64_t row = 0; row < args.source.dim(0); ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const double value =
          read_element(args.source.data, args.source.dtype, row * columns + column);
      const bool transposed = args.order == PackOrder::transposed;
      const int64_t n = transposed ? column : args.row_begin + row;
      const int64_t k = transposed ? args.row_begin + row : column;
      write_element(matrix, target.dtype, target.index(n, k), value);
    }
  }
}

}  // namespace dsmoe::kernels::ref

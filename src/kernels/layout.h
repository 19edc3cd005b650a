// Where the elements of weights lie: the same arithmetic for every backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/quantised.h"
#include "tensor/tensor.h"

namespace dsmoe::kernels {

using tensor::Device;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;
using tensor::WeightCoding;

// A matrix W [n, k] that is the right side of products y[n] = sum_k x[k] W[n, k].
//
// row_major: element (n, k) at n * k_size + k; what TMA reads, and what checkpoints hold.
// column_major: element (n, k) at k * n_size + n: the transpose of a row-major matrix as it lies,
// for the products of the backward pass (transpose_of; only where KernelTable::takes_transposes).
// panels: 16 outputs side by side so that a vector register holds one k of sixteen outputs,
// streaming through memory in the order it is used. BF16 keeps k in pairs (one 32-bit lane = k even
// low, k odd high: also the layout of an AMX tile) and pads k to 32 with zeros; other types pad
// nothing. n is padded to 16 with zeros.
// panels of integers (WeightCoding, numbers of type BF16): groups of 32 k in order,
// each 16 scales (BF16, one per output), then integers: int8 as [k][output]; int4 as words of 32
// bits [word][output], a word being 8 consecutive k of one output: the even ones from the lowest
// bits on, above them the odd ones, as a pair of bf16 keeps them.
enum class WeightLayout : uint8_t { row_major, column_major, panels };

constexpr int64_t kPanelWidth = 16;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Elements along k that one panel stores.
constexpr int64_t panel_depth(DType dtype, int64_t k) {
  return dtype == DType::BF16 ? round_up(k, 32) : k;
}

// Elements of one matrix, padding included.
constexpr int64_t weight_elements(WeightLayout layout, DType dtype, int64_t n, int64_t k) {
  return layout == WeightLayout::panels ? round_up(n, kPanelWidth) * panel_depth(dtype, k) : n * k;
}

constexpr int64_t panel_index(DType dtype, int64_t k_size, int64_t n, int64_t k) {
  const int64_t panel = n / kPanelWidth * (kPanelWidth * panel_depth(dtype, k_size));
  const int64_t lane = n % kPanelWidth;
  if (dtype == DType::BF16) return panel + (k / 2) * (2 * kPanelWidth) + lane * 2 + k % 2;
  return panel + k * kPanelWidth + lane;
}

constexpr int64_t kScaleBytes = kPanelWidth * 2;  // of one group of a panel

constexpr int64_t coded_group_bytes(WeightCoding coding) {
  return kScaleBytes + kPanelWidth * tensor::coded_row_bytes(coding, tensor::kGroupSize);
}

// Bytes of one panel: all k of 16 outputs.
constexpr int64_t panel_bytes(DType dtype, WeightCoding coding, int64_t k) {
  return coding == WeightCoding::plain
             ? kPanelWidth * panel_depth(dtype, k) * static_cast<int64_t>(tensor::size_of(dtype))
             : tensor::num_groups(k) * coded_group_bytes(coding);
}

// Byte offset in a matrix of the scale of (n, group), and of the first integer of that group.
constexpr int64_t coded_group_offset(WeightCoding coding, int64_t k_size, int64_t n,
                                     int64_t group) {
  return n / kPanelWidth * panel_bytes(DType::BF16, coding, k_size) +
         group * coded_group_bytes(coding);
}
constexpr int64_t scale_offset(WeightCoding coding, int64_t k_size, int64_t n, int64_t group) {
  return coded_group_offset(coding, k_size, n, group) + n % kPanelWidth * 2;
}
// Which four bits of a word of int4 are integer k (of 8), and a word of a file as panels hold it.
constexpr int64_t int4_place(int64_t k) { return k % 2 * 4 + k / 2; }
constexpr uint32_t int4_word(uint32_t stored) {
  uint32_t word = 0;
  for (int64_t k = 0; k < 8; ++k) word |= (stored >> (4 * k) & 15) << (4 * int4_place(k));
  return word;
}
// Byte offset of integer k, of int4 of the byte that holds it.
constexpr int64_t integer_offset(WeightCoding coding, int64_t k_size, int64_t n, int64_t k) {
  const int64_t first = coded_group_offset(coding, k_size, n, k / tensor::kGroupSize) + kScaleBytes;
  const int64_t place = k % tensor::kGroupSize;
  const int64_t lane = n % kPanelWidth;
  return coding == WeightCoding::int8
             ? first + place * kPanelWidth + lane
             : first + (place / 8 * kPanelWidth + lane) * 4 + int4_place(place % 8) / 2;
}
inline int packed_integer(WeightCoding coding, const void* matrix, int64_t k_size, int64_t n,
                          int64_t k) {
  const auto* byte = static_cast<const char*>(matrix) + integer_offset(coding, k_size, n, k);
  return tensor::coded_element(coding, byte,
                               coding == WeightCoding::int8 ? 0 : int4_place(k % 8) % 2);
}

// `count` matrices of one shape in a row: the experts of a layer, or a single matrix
// (count 1).
struct WeightStack {
  void* data = nullptr;
  DType dtype = DType::F32;
  WeightLayout layout = WeightLayout::row_major;
  Device device = Device::cpu;
  int64_t count = 0;
  int64_t n = 0;
  int64_t k = 0;
  WeightCoding coding = WeightCoding::plain;  // others: BF16 in panels only

  explicit operator bool() const { return data != nullptr; }
  std::size_t matrix_bytes() const {
    return layout == WeightLayout::panels
               ? static_cast<std::size_t>(round_up(n, kPanelWidth) / kPanelWidth *
                                          panel_bytes(dtype, coding, k))
               : static_cast<std::size_t>(n * k) * tensor::size_of(dtype);
  }
  std::size_t num_bytes() const { return static_cast<std::size_t>(count) * matrix_bytes(); }
  void* matrix(int64_t idx) const {
    return static_cast<char*>(data) + static_cast<std::size_t>(idx) * matrix_bytes();
  }
  // Where a matrix holds the weight of output `row` and input `column`.
  int64_t index(int64_t row, int64_t column) const {
    if (layout == WeightLayout::row_major) return row * k + column;
    if (layout == WeightLayout::column_major) return column * n + row;
    return panel_index(dtype, k, row, column);
  }
};

// The transposes of row-major matrices: the same memory, read the other way.
inline WeightStack transpose_of(const WeightStack& stack) {
  DSMOE_CHECK(stack.layout == WeightLayout::row_major, "only row-major weights transpose in place");
  WeightStack transposed = stack;
  transposed.layout = WeightLayout::column_major;
  transposed.n = stack.k;
  transposed.k = stack.n;
  return transposed;
}

// Columns [begin, begin + count) of a matrix, by default all: where memory does not hold all of
// them they come in parts, each through all ops that read it. Only tables that take parts
// (takes_parts) see others than the default.
struct ColumnRange {
  int64_t begin = 0;
  int64_t count = 0;  // 0: all

  bool is_whole() const { return count == 0; }
  int64_t count_of(int64_t columns) const { return count > 0 ? count : columns; }
};

}  // namespace dsmoe::kernels

// What attention keeps of every position, and where in its pages that lies: the same arithmetic for
// every backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace dsmoe::kernels {

constexpr int64_t kKeyBlock = 64;  // positions of a page
constexpr int64_t kBlocksPerSpan = 8;

// Where a position's values come from.
enum class KvValues : uint8_t {
  own,            // they are numbers of their own
  prefix_of_key,  // they are the first value_width numbers of the key (latent attention)
};

// A position is kept as `heads` keys and values. Pages hold 64 positions, one attention block.
// Within a page, per head:
//   keys:   64 rows of key_width as panels (n = position in the page, k = number of the key)
//   values: value_width rows of 64 as panels (n = number of the value, k = position in the page)
// so that scores and outputs are the same product as any other. Row-major pages (CUDA) hold
// [position, width] of both. There, values that are a prefix of the key need no memory: they are
// read where the keys lie. Panels hold them twice, as the two products read them in other orders.
struct KvShape {
  DType dtype = DType::F32;
  WeightLayout layout = WeightLayout::panels;
  int64_t heads = 0;
  int64_t key_width = 0;
  int64_t value_width = 0;
  KvValues values = KvValues::own;

  bool values_lie_in_keys() const {
    return values == KvValues::prefix_of_key && layout == WeightLayout::row_major;
  }
  // Keys and values are numbers of their own and equally wide: what kernels take so far.
  bool has_one_width() const { return values == KvValues::own && key_width == value_width; }

  // Numbers that a projection makes for one position.
  int64_t projected_width() const {
    return heads * (key_width + (values == KvValues::own ? value_width : 0));
  }
  // The bytes of one position, and those of a page with all padding.
  int64_t position_bytes() const {
    return heads * (key_width + (values_lie_in_keys() ? 0 : value_width)) * element_bytes();
  }
  int64_t page_bytes() const { return key_page_bytes() + value_page_bytes(); }
  int64_t key_page_bytes() const { return heads * key_head_elements() * element_bytes(); }
  int64_t value_page_bytes() const {
    return values_lie_in_keys() ? 0 : heads * value_head_elements() * element_bytes();
  }

  // Elements from one head to the next.
  int64_t key_head_elements() const { return weight_elements(layout, dtype, kKeyBlock, key_width); }
  int64_t value_head_elements() const {
    if (values_lie_in_keys()) return key_head_elements();
    return layout == WeightLayout::row_major
               ? kKeyBlock * value_width
               : weight_elements(layout, dtype, value_width, kKeyBlock);
  }
  // Element offset of the first element of (page, head).
  int64_t key_offset(int64_t page, int64_t head) const {
    return (page * heads + head) * key_head_elements();
  }
  int64_t value_offset(int64_t page, int64_t head) const {
    return (page * heads + head) * value_head_elements();
  }
  // Offset within (page, head) of number d at position `slot` of the page.
  int64_t key_index(int64_t slot, int64_t d) const {
    return layout == WeightLayout::row_major ? slot * key_width + d
                                             : panel_index(dtype, key_width, slot, d);
  }
  int64_t value_index(int64_t slot, int64_t d) const {
    if (values_lie_in_keys()) return key_index(slot, d);
    return layout == WeightLayout::row_major ? slot * value_width + d
                                             : panel_index(dtype, kKeyBlock, d, slot);
  }

 private:
  int64_t element_bytes() const { return static_cast<int64_t>(tensor::size_of(dtype)); }
};

// The pages of one layer. They start zero-filled, and positions not yet written stay zero.
struct KvPages {
  void* keys = nullptr;
  void* values = nullptr;  // the keys themselves where values lie in them
  Device device = Device::cpu;
  int64_t num_pages = 0;
  KvShape shape;

  std::size_t num_bytes() const { return static_cast<std::size_t>(num_pages * shape.page_bytes()); }
};

}  // namespace dsmoe::kernels

// Cases of attention on the way back: whole sequences, grouped heads, several spans.
#include "kernels/elements.h"
#include "ops/gradient_cases.h"

namespace dsmoe::ops {
namespace {

using kernels::kKeyBlock;

struct AttentionBackwardShape {
  int64_t heads, kv_heads, key_width;
  std::vector<int32_t> sizes;  // of the sequences
  int64_t value_width = 0;     // 0: key_width
};

class AttentionBackwardCase : public GradientCase {
 public:
  AttentionBackwardCase(const Variant& variant, const AttentionBackwardShape& shape)
      : GradientCase(variant) {
    std::vector<int32_t> starts{0};
    int64_t most_pages = 0, num_pages = 0;
    for (int32_t size : shape.sizes) {
      starts.push_back(starts.back() + size);
      most_pages = std::max(most_pages, pages_of(size));
      num_pages += pages_of(size);
    }
    kernels::KvPages& kv = args_.kv;
    kv = {.num_pages = num_pages,
          .shape = {.dtype = variant.operand,
                    .heads = shape.kv_heads,
                    .key_width = shape.key_width,
                    .value_width = shape.value_width > 0 ? shape.value_width : shape.key_width}};
    kv.keys = arena_.bytes("kv", kv.num_bytes());
    kv.values = static_cast<char*>(kv.keys) + num_pages * kv.shape.key_page_bytes();
    std::memset(kv.keys, 0, kv.num_bytes());
    // Pages of a sequence in reverse order: the table is not the identity.
    std::vector<int32_t> table;
    int64_t page = 0;
    for (std::size_t s = 0; s < shape.sizes.size(); ++s) {
      const int64_t pages = pages_of(shape.sizes[s]);
      for (int64_t i = 0; i < most_pages; ++i)
        table.push_back(i < pages ? static_cast<int32_t>(page + pages - 1 - i) : 0);
      page += pages;
      fill_pages(shape.sizes[s], table.data() + static_cast<int64_t>(s) * most_pages,
                 100 + 2 * static_cast<uint32_t>(s));
    }
    const int64_t tokens = starts.back();
    const Shape rows{tokens, shape.heads, kv.shape.value_width};
    args_.q = operand({tokens, shape.heads, shape.key_width}, 1, 2);
    args_.q_starts = ints(starts);
    args_.page_table = int_matrix(table, {static_cast<int64_t>(shape.sizes.size()), most_pages});
    args_.scale = 1 / std::sqrt(static_cast<float>(shape.key_width));
    args_.out = operand(rows, 2);
    args_.d_out = operand(rows, 3);
    args_.d_qkv = changed("d_qkv", scalar(),
                          {tokens, shape.heads * shape.key_width + kv.shape.projected_width()}, 4);
  }

 private:
  static int64_t pages_of(int64_t size) { return (size + kKeyBlock - 1) / kKeyBlock; }
  void call(const Context& context) override { kernels::attention_backward(context, args_); }

  void fill_pages(int64_t num_keys, const int32_t* pages, uint32_t stream) {
    if (num_keys == 0) return;
    const kernels::KvPages& kv = args_.kv;
    const TensorView k = operand({num_keys, kv.shape.heads, kv.shape.key_width}, stream);
    const TensorView v = operand({num_keys, kv.shape.heads, kv.shape.value_width}, stream + 1);
    for (int64_t row = 0; row < num_keys * kv.shape.heads; ++row) {
      const int64_t h = row % kv.shape.heads;
      const int64_t key = row / kv.shape.heads;
      const int64_t page = pages[key / kKeyBlock];
      const int64_t slot = key % kKeyBlock;
      for (int64_t d = 0; d < kv.shape.key_width; ++d) {
        kernels::write_element(kv.keys, kv.shape.dtype,
                               kv.shape.key_offset(page, h) + kv.shape.key_index(slot, d),
                               element(k, row * kv.shape.key_width + d));
      }
      for (int64_t d = 0; d < kv.shape.value_width; ++d) {
        kernels::write_element(kv.values, kv.shape.dtype,
                               kv.shape.value_offset(page, h) + kv.shape.value_index(slot, d),
                               element(v, row * kv.shape.value_width + d));
      }
    }
  }

  kernels::AttentionBackward args_;
};

}  // namespace

void add_gradient_attention_cases(std::vector<OpEntry>& cases) {
  const auto add = [&](const char* name, AttentionBackwardShape shape) {
    cases.push_back(gradient_entry<AttentionBackwardCase>("attention_backward", name, shape));
  };
  add("even", {2, 2, 32, {64, 128}});
  add("odd", {3, 1, 10, {9, 0, 70}});
  add("grouped", {6, 2, 40, {33, 150}});
  add("one_key", {2, 1, 18, {1, 65}});
  add("spans", {1, 1, 6, {600}});
  add("wide_keys", {3, 3, 26, {33, 70}, 11});
  add("wide_values", {4, 2, 10, {9, 66}, 40});
}

}  // namespace dsmoe::ops

// Cases of attention: prefill, decode and mixed batches over paged keys and values.
#include <cmath>

#include "kernels/elements.h"
#include "ops/op_case.h"

namespace dsmoe::ops {
namespace {

using kernels::kKeyBlock;

struct AttentionShape {
  int64_t heads, kv_heads, key_width;
  // Per sequence: queries, and the position of the first of them.
  struct Sequence {
    int64_t queries, first_position;
  };
  std::vector<Sequence> sequences;
  int64_t value_width = key_width;
  kernels::KvValues values = kernels::KvValues::own;
};

class AttentionCase : public OpCase {
 public:
  AttentionCase(const Variant& variant, const AttentionShape& shape)
      : OpCase(variant), shape_(shape) {
    int64_t tokens = 0, most_pages = 0, num_pages = 0;
    for (const auto& s : shape.sequences) {
      const int64_t pages = (s.first_position + s.queries + kKeyBlock - 1) / kKeyBlock;
      tokens += s.queries;
      num_pages += pages;
      most_pages = std::max(most_pages, pages);
    }
    args_.kv = {.num_pages = num_pages,
                .shape = {.dtype = variant.operand,
                          .heads = shape.kv_heads,
                          .key_width = shape.key_width,
                          .value_width = shape.value_width,
                          .values = shape.values}};
    args_.kv.keys = arena_.bytes("kv", args_.kv.num_bytes());
    args_.kv.values =
        static_cast<char*>(args_.kv.keys) + num_pages * args_.kv.shape.key_page_bytes();
    std::vector<int32_t> starts{0}, position, table;
    int64_t page = 0, token = 0;
    for (const auto& s : shape.sequences) {
      const int64_t pages = (s.first_position + s.queries + kKeyBlock - 1) / kKeyBlock;
      // Pages of a sequence in reverse order: the table is not the identity.
      for (int64_t i = 0; i < most_pages; ++i)
        table.push_back(i < pages ? static_cast<int32_t>(page + pages - 1 - i) : 0);
      page += pages;
      for (int64_t q = 0; q < s.queries; ++q, ++token) {
        if (!alone() || token == variant.only_row)
          position.push_back(static_cast<int32_t>(s.first_position + q));
      }
      starts.push_back(static_cast<int32_t>(position.size()));
      fill_pages(s.first_position + s.queries,
                 &table[table.size() - static_cast<std::size_t>(most_pages)],
                 static_cast<uint64_t>(page));
    }
    tokens = rows_of(tokens);
    args_.q_starts = ints(starts);
    args_.position = ints(position);
    args_.page_table = ints(table);
    args_.page_table.shape = {static_cast<int64_t>(shape.sequences.size()), most_pages};
    args_.scale = 1 / std::sqrt(static_cast<float>(shape.key_width));
    args_.q = random(variant.operand, {tokens, shape.heads, shape.key_width},
                     {.stream = 1, .scale = 2, .by_row = true});
    args_.out = output("out", variant.operand, {tokens, shape.heads, shape.value_width});
  }
  void run(const Context& context) override { kernels::attention_forward(context, args_); }
  int64_t num_rows() const override { return args_.q.dim(0); }

  // Scores err by d = gamma * |q||k| * scale, numerators by twice that relatively, and by one
  // rounding; outputs are averages of V (below 5.5): all relative errors count against its largest
  // element.
  std::vector<double> bound(std::size_t, const OpCase& exact, const OpCase&) const override {
    const auto dim = static_cast<double>(shape_.key_width);
    const double largest_score = 2 * 5.5 * 5.5 * dim / std::sqrt(dim);
    const double score_error =
        (product_gamma(variant_.operand, shape_.key_width) + 2 * kUnit) * largest_score;
    double keys = 0;
    for (const auto& s : shape_.sequences)
      keys = std::max(keys, static_cast<double>(s.first_position + s.queries));
    const double sums = (keys / 16 + keys / kKeyBlock * 8 + 40) * kUnit +
                        product_gamma(variant_.operand, 64) * (keys / 64 + 1);
    std::vector<double> bounds;
    const TensorView& view = exact.outputs()[0].view;
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      bounds.push_back((4 * score_error + 2 * sums + 2 * rounding()) * 5.5 +
                       rounding() * std::abs(element(view, i)));
    }
    return bounds;
  }

 private:
  // Keys and values of one sequence; places behind its last position stay zero.
  void fill_pages(int64_t num_keys, const int32_t* pages, uint64_t seed) {
    const kernels::KvPages& kv = args_.kv;
    const TensorView k = random(variant_.operand, {num_keys, kv.shape.heads, kv.shape.key_width},
                                {.stream = 100 + 2 * static_cast<uint32_t>(seed)});
    const TensorView v = random(variant_.operand, {num_keys, kv.shape.heads, kv.shape.value_width},
                                {.stream = 101 + 2 * static_cast<uint32_t>(seed)});
    const bool own = kv.shape.values == kernels::KvValues::own;
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
                               own ? element(v, row * kv.shape.value_width + d)
                                   : element(k, row * kv.shape.key_width + d));
      }
    }
  }

  AttentionShape shape_;
  kernels::AttentionForward args_;
};

}  // namespace

void add_attention_cases(std::vector<OpEntry>& cases) {
  const auto add = [&](const char* name, AttentionShape shape) {
    cases.push_back({"attention_forward", name, [=](const Variant& variant) {
                       return std::make_unique<AttentionCase>(variant, shape);
                     }});
  };
  add("prefill", {4, 2, 32, {{70, 0}}});
  add("odd", {3, 1, 10, {{9, 0}, {3, 61}}});
  add("decode", {4, 4, 16, {{1, 0}, {1, 63}, {1, 64}, {1, 200}}});
  add("spans", {2, 1, 18, {{5, 509}, {2, 1100}}});
  add("many_spans", {1, 1, 34, {{1, 2000}, {3, 1534}}});
  add("chunk", {6, 2, 40, {{20, 30}, {0, 10}, {33, 100}}});
  add("wide_keys", {4, 4, 42, {{20, 30}, {66, 0}, {1, 200}}, 27});
  add("wide_values", {3, 1, 18, {{9, 60}, {1, 3}}, 50});
  add("absorbed", {5, 1, 76, {{20, 30}, {1, 100}}, 60, kernels::KvValues::prefix_of_key});
}

}  // namespace dsmoe::ops

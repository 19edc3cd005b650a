// Attention on the way back: a thread takes one KV head of one sequence, all sums as products over
// blocks of 64.
#include <cstring>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {
namespace {

// Consecutive pieces of a thread's scratch memory; without memory it only counts.
class Pieces {
 public:
  explicit Pieces(float* memory) : memory_(memory) {}
  float* take(int64_t floats) {
    float* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(floats, 16);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* memory_;
  int64_t used_ = 0;
};

// Sized for F32; BF16 uses half of what holds operands.
struct Work {
  float* product;
  float* rows;          // [keys, depth of a panel], or [value_width, 64]
  float* key_panels;    // n = key, k = head dimension
  float* value_panels;  // likewise
  float* key_columns;   // n = head dimension, k = key
  float* query_panels;  // n = head dimension, k = query of the block
  float* d_out_panels;
  float* s;           // [64, keys]
  float* dp;          // [64, keys]
  float* p;           // [64, keys]
  float* ds;          // [64, keys]
  float* transposed;  // [keys, 64]
  int32_t* identity;  // [keys]

  Work(Pieces& pieces, int64_t keys, int64_t key_width, int64_t value_width)
      : product(pieces.take(kProductScratch)),
        rows(pieces.take(keys * round_up(std::max(key_width, value_width), 32))),
        key_panels(pieces.take(keys * round_up(key_width, 32))),
        value_panels(pieces.take(keys * round_up(value_width, 32))),
        key_columns(pieces.take(keys * round_up(key_width, 16))),
        query_panels(pieces.take(kKeyBlock * round_up(key_width, 16))),
        d_out_panels(pieces.take(kKeyBlock * round_up(value_width, 16))),
        s(pieces.take(kKeyBlock * keys)),
        dp(pieces.take(kKeyBlock * keys)),
        p(pieces.take(kKeyBlock * keys)),
        ds(pieces.take(kKeyBlock * keys)),
        transposed(pieces.take(kKeyBlock * keys)),
        identity(reinterpret_cast<int32_t*>(pieces.take(keys))) {}
};

template <class T>
class KvHeadBackward {
 public:
  KvHeadBackward(const Tier& tier, const AttentionBackward& args, int64_t sequence, int64_t kv_head)
      : tier_(tier),
        args_(args),
        type_(element_of(args.q.dtype)),
        heads_(args.q.dim(1)),
        kv_heads_(args.kv.shape.heads),
        key_width_(args.kv.shape.key_width),
        value_width_(args.kv.shape.value_width),
        kv_head_(kv_head),
        first_token_(args.q_starts.as<int32_t>()[sequence]),
        size_(args.q_starts.as<int32_t>()[sequence + 1] - first_token_),
        padded_(round_up(size_, kKeyBlock)),
        pages_(args.page_table.as<int32_t>() + sequence * args.page_table.dim(1)),
        work_(make_work(padded_, key_width_, value_width_)) {}

  void run() {
    read_pages();
    for (int64_t t = 0; t < size_; ++t) {
      std::fill_n(d_key(t), key_width_, 0.0f);
      std::fill_n(d_value(t), value_width_, 0.0f);
    }
    const int64_t group = heads_ / kv_heads_;
    for (int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) {
      for (int64_t begin = 0; begin < size_; begin += kKeyBlock) query_block(head, begin);
    }
  }

 private:
  static Work make_work(int64_t keys, int64_t key_width, int64_t value_width) {
    Pieces pieces(thread_scratch(attention_backward_scratch(keys, key_width, value_width)));
    return Work(pieces, keys, key_width, value_width);
  }
  int64_t query_stride() const { return heads_ * key_width_; }
  int64_t out_stride() const { return heads_ * value_width_; }
  int64_t target_stride() const { return args_.d_qkv.dim(1); }
  // A head's numbers of a token, of q, out or d_out.
  T* row(const TensorView& view, int64_t t, int64_t head) const {
    return view.as<T>() + ((first_token_ + t) * heads_ + head) * view.dim(2);
  }
  float* target(int64_t t) const {
    return args_.d_qkv.as<float>() + (first_token_ + t) * target_stride();
  }
  float* d_query(int64_t t, int64_t head) const { return target(t) + head * key_width_; }
  float* d_key(int64_t t) const { return target(t) + (heads_ + kv_head_) * key_width_; }
  float* d_value(int64_t t) const {
    return target(t) + (heads_ + kv_heads_) * key_width_ + kv_head_ * value_width_;
  }

  // Keys as they lie, keys by column, and values as keys lie.
  void read_pages() {
    T* rows = reinterpret_cast<T*>(work_.rows);
    const int64_t depth = panel_depth(args_.kv.shape.dtype, key_width_);
    for (int64_t key = 0; key < padded_; ++key) work_.identity[key] = static_cast<int32_t>(key);
    for (int64_t block = 0; block < padded_ / kKeyBlock; ++block) {
      const T* keys =
          static_cast<const T*>(args_.kv.keys) + args_.kv.shape.key_offset(pages_[block], kv_head_);
      std::copy_n(keys, kKeyBlock * depth,
                  reinterpret_cast<T*>(work_.key_panels) + block * kKeyBlock * depth);
      for (int64_t key = 0; key < kKeyBlock; key += kPanelWidth)
        unpack(keys + key * depth, depth, rows + (block * kKeyBlock + key) * depth);
    }
    std::memset(rows + size_ * depth, 0,
                static_cast<std::size_t>((padded_ - size_) * depth) * sizeof(T));
    tier_.gather_panels(
        gathered(rows, depth, work_.identity, padded_, key_width_, work_.key_columns));
    const int64_t value_depth = panel_depth(args_.kv.shape.dtype, value_width_);
    T* panels = reinterpret_cast<T*>(work_.value_panels);
    std::memset(panels, 0, static_cast<std::size_t>(padded_ * value_depth) * sizeof(T));
    for (int64_t block = 0; block < padded_ / kKeyBlock; ++block) {
      const T* values = static_cast<const T*>(args_.kv.values) +
                        args_.kv.shape.value_offset(pages_[block], kv_head_);
      T* by_dimension = rows;  // [value_width, 64]
      for (int64_t d = 0; d < value_width_; d += kPanelWidth)
        unpack(values + d * kKeyBlock, kKeyBlock, by_dimension + d * kKeyBlock);
      for (int64_t key = 0; key < kKeyBlock; key += kPanelWidth) {
        tier_.pack_columns({.source = by_dimension + key,
                            .source_stride = kKeyBlock,
                            .rows = value_width_,
                            .columns = kPanelWidth,
                            .source_type = type_,
                            .target_type = type_,
                            .panel = panels + (block * kKeyBlock + key) * value_depth});
      }
    }
  }

  // The sixteen outputs of a panel as rows of `depth` elements. A panel is a matrix of words, one
  // float or two bf16, and rows are its columns.
  void unpack(const T* panel, int64_t depth, T* rows) const {
    const int64_t words = depth * static_cast<int64_t>(sizeof(T)) / 4;
    if (words % kPanelWidth != 0) {  // F32, a head of odd size
      for (int64_t i = 0; i < kPanelWidth * depth; ++i)
        rows[i] = panel[panel_index(args_.kv.shape.dtype, depth, i / depth, i % depth)];
      return;
    }
    GatherRows gather = gathered(panel, kPanelWidth, work_.identity, words, kPanelWidth, rows);
    gather.source_type = gather.target_type = Element::f32;
    tier_.gather_transposed(gather);
  }

  GatherRows gathered(const void* source, int64_t stride, const int32_t* rows, int64_t depth,
                      int64_t columns, void* out) const {
    return {.source = source,
            .stride = stride,
            .source_type = type_,
            .target_type = type_,
            .row_of_k = rows,
            .depth = depth,
            .column_end = columns,
            .out = out};
  }

  // `rows` rows of x times panels that hold n outputs of `depth` k.
  ProductBlock product(const void* x, int64_t x_stride, int64_t rows, const void* panels, int64_t n,
                       int64_t k, int64_t depth, float* out, int64_t out_stride) const {
    ProductBlock block;
    block.x = x;
    block.x_stride = x_stride;
    block.row_end = rows;
    block.x_type = type_;
    block.weight_type = type_;
    block.weight[0] = panels;
    block.k = k;
    block.panel_bytes = kPanelWidth * depth * static_cast<int64_t>(sizeof(T));
    block.panel_end = round_up(n, kPanelWidth) / kPanelWidth;
    block.n = n;
    block.out = out;
    block.out_stride = out_stride;
    block.scratch = work_.product;
    return block;
  }

  // Up to 64 queries from `begin` against all keys up to the last of them.
  void query_block(int64_t head, int64_t begin) {
    const int64_t rows = std::min(kKeyBlock, size_ - begin);
    const int64_t keys = begin + kKeyBlock;  // padded
    const int64_t depth = panel_depth(args_.kv.shape.dtype, key_width_);
    const int64_t value_depth = panel_depth(args_.kv.shape.dtype, value_width_);
    const T* q = row(args_.q, begin, head);
    const T* d_out = row(args_.d_out, begin, head);
    tier_.product(
        product(q, query_stride(), rows, work_.key_panels, keys, key_width_, depth, work_.s, keys));
    tier_.product(product(d_out, out_stride(), rows, work_.value_panels, keys, value_width_,
                          value_depth, work_.dp, keys));
    T* p = reinterpret_cast<T*>(work_.p);
    T* ds = reinterpret_cast<T*>(work_.ds);
    for (int64_t r = 0; r < rows; ++r) {
      tier_.attend_backward({.type = type_,
                             .s = work_.s + r * keys,
                             .dp = work_.dp + r * keys,
                             .keys = begin + r + 1,
                             .padded_keys = keys,
                             .out = row(args_.out, begin + r, head),
                             .d_out = d_out + r * out_stride(),
                             .width = value_width_,
                             .scale = args_.scale,
                             .p = p + r * keys,
                             .ds = ds + r * keys});
    }
    d_queries(head, begin, rows, ds);
    int32_t row_of_k[kKeyBlock];
    for (int64_t r = 0; r < kKeyBlock; ++r) row_of_k[r] = r < rows ? static_cast<int32_t>(r) : -1;
    tier_.gather_panels(
        gathered(q, query_stride(), row_of_k, kKeyBlock, key_width_, work_.query_panels));
    continue_over_queries(ds, row_of_k, begin + rows, keys, work_.query_panels, key_width_,
                          d_key(0));
    tier_.gather_panels(
        gathered(d_out, out_stride(), row_of_k, kKeyBlock, value_width_, work_.d_out_panels));
    continue_over_queries(p, row_of_k, begin + rows, keys, work_.d_out_panels, value_width_,
                          d_value(0));
  }

  // One chain over the key blocks. The bf16 rule is a chain of blocks of 32 anyway; the fp32 rule
  // starts a new segment at every block of keys.
  void d_queries(int64_t head, int64_t begin, int64_t rows, const T* ds) const {
    const int64_t keys = begin + kKeyBlock;
    const int64_t step = type_ == Element::bf16 ? keys : kKeyBlock;
    float* out = d_query(begin, head);
    for (int64_t key = 0; key < keys; key += step) {
      ProductBlock block = product(
          ds + key, keys, rows, reinterpret_cast<const T*>(work_.key_columns) + key * kPanelWidth,
          key_width_, step, padded_, out, target_stride());
      if (key > 0) block.start = out;
      tier_.product(block);
    }
  }

  // The chains of all keys seen go on over the queries of one block.
  void continue_over_queries(const T* matrix, const int32_t* row_of_k, int64_t seen, int64_t keys,
                             const float* panels, int64_t width, float* out) const {
    tier_.gather_transposed(gathered(matrix, keys, row_of_k, kKeyBlock, seen, work_.transposed));
    ProductBlock block = product(work_.transposed, kKeyBlock, seen, panels, width, kKeyBlock,
                                 kKeyBlock, out, target_stride());
    block.start = out;
    tier_.product(block);
  }

  const Tier& tier_;
  const AttentionBackward& args_;
  Element type_;
  int64_t heads_, kv_heads_, key_width_, value_width_, kv_head_, first_token_, size_, padded_;
  const int32_t* pages_;
  Work work_;
};

}  // namespace

int64_t attention_backward_scratch(int64_t keys, int64_t key_width, int64_t value_width) {
  Pieces count(nullptr);
  Work(count, keys, key_width, value_width);
  return count.used();
}

void attention_backward(const Tier& tier, const Context& context, const AttentionBackward& args) {
  DSMOE_CHECK(args.kv.shape.layout == WeightLayout::panels,
              "the CPU tiers need KV pages in panels");
  const int32_t* starts = args.q_starts.as<int32_t>();
  const int64_t sequences = args.q_starts.dim(0) - 1;
  const auto cost = [&](int64_t s) {
    const auto size = static_cast<double>(starts[s + 1] - starts[s]);
    return size * (size + static_cast<double>(kKeyBlock));
  };
  double total = 0;
  for (int64_t s = 0; s < sequences; ++s)
    total += cost(s) * static_cast<double>(args.kv.shape.heads);
  run_shares(context, total, 0, [&](Share& share) {
    for (int64_t s = 0; s < sequences; ++s) {
      if (starts[s] == starts[s + 1]) continue;
      const Range heads = share.take(args.kv.shape.heads, cost(s));
      for (int64_t kv_head = heads.begin; kv_head < heads.end; ++kv_head) {
        if (element_of(args.q.dtype) == Element::bf16) {
          KvHeadBackward<tensor::Bf16>(tier, args, s, kv_head).run();
        } else {
          KvHeadBackward<float>(tier, args, s, kv_head).run();
        }
      }
    }
  });
}

}  // namespace dsmoe::kernels::cpu

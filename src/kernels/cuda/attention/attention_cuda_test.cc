// Attention against the reference; prefill, chunks and decode give the same bits.
#include "kernels/cuda/attention/backward_attention.h"
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

class AttentionCudaTest : public CudaTest {
 protected:
  struct Case {
    DType dtype;
    int64_t heads, kv_heads, head_dim;
    std::vector<int32_t> lengths;  // of each sequence; all positions are queries
  };
  struct Cache {
    Twin keys, values, page_table;
    int64_t pages;
    int64_t max_pages;
  };
  // Pages are handed out in a scrambled order. Positions past a sequence's end are zero.
  Cache make_cache(const Case& c) {
    Cache cache{};
    for (const int32_t length : c.lengths) {
      cache.pages += (length + 63) / 64;
      cache.max_pages = std::max<int64_t>(cache.max_pages, (length + 63) / 64);
    }
    std::vector<int32_t> order(cache.pages);
    for (int64_t i = 0; i < cache.pages; ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int32_t> table(c.lengths.size() * cache.max_pages, 0);
    const int64_t page_elements = c.kv_heads * 64 * c.head_dim;
    std::vector<double> keys = normal(cache.pages * page_elements, 1);
    std::vector<double> values = normal(cache.pages * page_elements, 1);
    int64_t next = 0;
    for (std::size_t s = 0; s < c.lengths.size(); ++s) {
      for (int32_t block = 0; block * 64 < c.lengths[s]; ++block) {
        const int32_t page = order[next++];
        table[s * cache.max_pages + block] = page;
        for (int64_t i = 0; i < page_elements; ++i) {
          if (block * 64 + i / c.head_dim % 64 >= c.lengths[s])
            keys[page * page_elements + i] = values[page * page_elements + i] = 0;
        }
      }
    }
    cache.keys = from(c.dtype, {cache.pages, c.kv_heads, 64, c.head_dim}, keys);
    cache.values = from(c.dtype, {cache.pages, c.kv_heads, 64, c.head_dim}, values);
    cache.page_table = integers(table, {static_cast<int64_t>(c.lengths.size()), cache.max_pages});
    return cache;
  }
  static KvPages pages_of(const Case& c, const Cache& cache, TensorView Twin::*side) {
    const TensorView& keys = cache.keys.*side;
    return {.keys = keys.data,
            .values = (cache.values.*side).data,
            .device = keys.device,
            .num_pages = cache.pages,
            .shape = {.dtype = keys.dtype,
                      .layout = WeightLayout::row_major,
                      .heads = c.kv_heads,
                      .key_width = c.head_dim,
                      .value_width = c.head_dim}};
  }
  static float scale_of(const Case& c) {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
  }
};

TEST_F(AttentionCudaTest, AgreesWithTheReference) {
  const Case cases[] = {{DType::BF16, 4, 4, 128, {1, 70, 3}},   {DType::BF16, 8, 2, 128, {600, 65}},
                        {DType::BF16, 2, 1, 64, {64, 63, 130}}, {DType::BF16, 3, 3, 40, {100}},
                        {DType::BF16, 2, 2, 192, {70, 2}},      {DType::BF16, 2, 1, 30, {66}},
                        {DType::F32, 4, 2, 24, {70, 1}},        {DType::F32, 2, 2, 128, {600}}};
  for (const Case& c : cases) {
    const Cache cache = make_cache(c);
    std::vector<int32_t> starts{0};
    std::vector<int32_t> positions;
    for (const int32_t length : c.lengths) {
      for (int32_t t = 0; t < length; ++t) positions.push_back(t);
      starts.push_back(static_cast<int32_t>(positions.size()));
    }
    const auto tokens = static_cast<int64_t>(positions.size());
    const Twin q = random(c.dtype, {tokens, c.heads, c.head_dim});
    const Twin q_starts = integers(starts, {static_cast<int64_t>(starts.size())});
    const Twin position = integers(positions, {tokens});
    const Twin out = output(c.dtype, {tokens, c.heads, c.head_dim});
    const auto call = [&](const Context& context, TensorView Twin::*side) {
      attention_forward(context, {.q = q.*side,
                                  .kv = pages_of(c, cache, side),
                                  .q_starts = q_starts.*side,
                                  .position = position.*side,
                                  .page_table = cache.page_table.*side,
                                  .scale = scale_of(c),
                                  .out = out.*side});
    };
    call(cuda_, &Twin::device);
    call(ref_, &Twin::host);
    // Rounded numerators and a rounded output; scores below 8 in size carry 8 log2(e) ulps into
    // exp.
    const double bound = (c.dtype == DType::BF16 ? 2 * kRound : 0) + 100 * kUnit;
    expect_norm(out, bound, "attention");
    expect_elements(out, bound, (c.dtype == DType::BF16 ? 2 * kRound : 100 * kUnit) * 3,
                    "attention");
  }
}

TEST_F(AttentionCudaTest, PrefillChunksAndDecodeAgreeBitForBit) {
  for (const auto& [kv_heads, head_dim] : {std::pair{4, 128}, {1, 128}, {2, 64}}) {
    const Case c{DType::BF16, 4, kv_heads, head_dim, {1300, 77, 513}};
    const Cache cache = make_cache(c);
    const std::vector<int32_t> first{0, 1300, 1377, 1890};
    const Twin q = random(c.dtype, {1890, c.heads, c.head_dim});
    // Runs queries [from, to) of each sequence in one call and returns their rows.
    const auto run = [&](const std::vector<std::pair<int32_t, int32_t>>& ranges) {
      std::vector<int32_t> starts{0};
      std::vector<int32_t> positions;
      std::vector<unsigned char> queries;
      const std::vector<unsigned char> all = bytes_of(q.device);
      const int64_t row = c.heads * c.head_dim * 2;
      for (std::size_t s = 0; s < ranges.size(); ++s) {
        for (int32_t t = ranges[s].first; t < ranges[s].second; ++t) {
          positions.push_back(t);
          queries.insert(queries.end(), all.begin() + (first[s] + t) * row,
                         all.begin() + (first[s] + t + 1) * row);
        }
        starts.push_back(static_cast<int32_t>(positions.size()));
      }
      const auto tokens = static_cast<int64_t>(positions.size());
      const TensorView some = device_tensor(c.dtype, {tokens, c.heads, c.head_dim});
      upload(cuda_, queries.data(), some);
      const Twin q_starts = integers(starts, {4});
      const Twin position = integers(positions, {tokens});
      const TensorView out = device_tensor(c.dtype, {tokens, c.heads, c.head_dim});
      poison(out);
      attention_forward(cuda_, {.q = some,
                                .kv = pages_of(c, cache, &Twin::device),
                                .q_starts = q_starts.device,
                                .position = position.device,
                                .page_table = cache.page_table.device,
                                .scale = scale_of(c),
                                .out = out});
      return bytes_of(out);
    };
    const int64_t row = c.heads * c.head_dim * 2;
    const std::vector<unsigned char> whole = run({{0, 1300}, {0, 77}, {0, 513}});
    EXPECT_EQ(run({{0, 1300}, {0, 77}, {0, 513}}), whole) << "run to run";
    const auto expect_row = [&](const std::vector<unsigned char>& part, int64_t part_row,
                                int64_t whole_row, const char* what) {
      EXPECT_EQ(std::memcmp(part.data() + part_row * row, whole.data() + whole_row * row, row), 0)
          << what << " row " << whole_row;
    };
    for (const int32_t t : {0, 1, 63, 64, 76}) {
      const auto decode = run({{t + 1000, t + 1001}, {t, t + 1}, {t + 436, t + 437}});
      expect_row(decode, 0, t + 1000, "decode");
      expect_row(decode, 1, 1300 + t, "decode");
      expect_row(decode, 2, 1377 + t + 436, "decode");
    }
    const auto chunk = run({{500, 1211}, {0, 0}, {512, 513}});
    for (int32_t t = 500; t < 1211; ++t) expect_row(chunk, t - 500, t, "chunk");
    expect_row(chunk, 711, 1377 + 512, "chunk");
    const auto few = run({{1295, 1300}, {70, 73}, {0, 0}});
    for (int32_t t = 0; t < 5; ++t) expect_row(few, t, 1295 + t, "few");
    for (int32_t t = 0; t < 3; ++t) expect_row(few, 5 + t, 1300 + 70 + t, "few");
  }
}

// The forward pass's output comes from the reference, rounded, so that only the backward pass is
// measured.
class AttentionBackwardCudaTest : public AttentionCudaTest {
 protected:
  struct Batch {
    Cache cache;
    Twin q, q_starts, out, d_out, d_qkv;
    TensorView log_sums;  // on the device
    int64_t tokens = 0;
  };
  Batch make_batch(const Case& c) {
    Batch b{.cache = make_cache(c)};
    std::vector<int32_t> starts{0};
    std::vector<int32_t> positions;
    for (const int32_t length : c.lengths) {
      for (int32_t t = 0; t < length; ++t) positions.push_back(t);
      starts.push_back(static_cast<int32_t>(positions.size()));
    }
    b.tokens = static_cast<int64_t>(positions.size());
    b.q = random(c.dtype, {b.tokens, c.heads, c.head_dim});
    b.q_starts = integers(starts, {static_cast<int64_t>(starts.size())});
    const TensorView exact = host_tensor(DType::F64, b.q.host.shape);
    attention_forward(ref_, {.q = b.q.host,
                             .kv = pages_of(c, b.cache, &Twin::host),
                             .q_starts = b.q_starts.host,
                             .position = integers(positions, {b.tokens}).host,
                             .page_table = b.cache.page_table.host,
                             .scale = scale_of(c),
                             .out = exact});
    b.out = from(c.dtype, b.q.host.shape,
                 {exact.as<double>(), exact.as<double>() + exact.num_elements()});
    b.log_sums = device_tensor(DType::F32, {b.tokens, c.heads});
    poison(b.log_sums);
    attention_forward(cuda_, {.q = b.q.device,
                              .kv = pages_of(c, b.cache, &Twin::device),
                              .q_starts = b.q_starts.device,
                              .position = integers(positions, {b.tokens}).device,
                              .page_table = b.cache.page_table.device,
                              .scale = scale_of(c),
                              .out = device_tensor(c.dtype, b.q.device.shape),
                              .log_sums = b.log_sums});
    b.d_out = random(c.dtype, b.q.host.shape);
    b.d_qkv = output(DType::F32, {b.tokens, (c.heads + 2 * c.kv_heads) * c.head_dim});
    return b;
  }
  static AttentionBackward args(const Case& c, const Batch& b, TensorView Twin::*side) {
    return {.q = b.q.*side,
            .kv = pages_of(c, b.cache, side),
            .q_starts = b.q_starts.*side,
            .page_table = b.cache.page_table.*side,
            .scale = scale_of(c),
            .out = b.out.*side,
            .log_sums = side == &Twin::device ? b.log_sums : TensorView{},
            .d_out = b.d_out.*side,
            .d_qkv = b.d_qkv.*side};
  }
};

TEST_F(AttentionBackwardCudaTest, AgreesWithTheReference) {
  const Case cases[] = {{DType::BF16, 4, 4, 128, {1, 70, 3}},   {DType::BF16, 4, 2, 128, {200, 65}},
                        {DType::BF16, 2, 1, 64, {64, 63, 130}}, {DType::BF16, 3, 3, 40, {100}},
                        {DType::BF16, 2, 1, 30, {66}},          {DType::F32, 4, 2, 24, {70, 1}},
                        {DType::BF16, 4, 2, 64, {450, 129}},    {DType::BF16, 2, 2, 128, {390}},
                        {DType::F32, 2, 2, 128, {130}}};
  for (const Case& c : cases) {
    const Batch b = make_batch(c);
    attention_backward(cuda_, args(c, b, &Twin::device));
    attention_backward(ref_, args(c, b, &Twin::host));
    // p and ds are rounded once each, independently per key.
    expect_norm(b.d_qkv, c.dtype == DType::BF16 ? kRound : 1e-5, "attention backward");
  }
}

TEST_F(AttentionBackwardCudaTest, BitsDoNotDependOnTheBatch) {
  const Case c{DType::BF16, 4, 2, 64, {130, 5, 300}};
  const Batch b = make_batch(c);
  attention_backward(cuda_, args(c, b, &Twin::device));
  const auto whole = bytes_of(b.d_qkv.device);
  attention_backward(cuda_, args(c, b, &Twin::device));
  EXPECT_EQ(whole, bytes_of(b.d_qkv.device)) << "run to run";
  poison(b.d_qkv.device);
  int32_t begin = 0;
  for (std::size_t s = 0; s < c.lengths.size(); ++s) {
    const int32_t end = begin + c.lengths[s];
    AttentionBackward one = args(c, b, &Twin::device);
    for (TensorView* view : {&one.q, &one.out, &one.log_sums, &one.d_out, &one.d_qkv})
      *view = view->rows(begin, end);
    one.q_starts = integers({0, c.lengths[s]}, {2}).device;
    one.page_table = one.page_table.rows(static_cast<int64_t>(s), static_cast<int64_t>(s) + 1);
    attention_backward(cuda_, one);
    begin = end;
  }
  EXPECT_EQ(whole, bytes_of(b.d_qkv.device)) << "one sequence at a time";
}

// Portable kernels and Hopper's, and the rotation in the kernel and after it.
TEST_F(AttentionBackwardCudaTest, KernelsAgreeBitForBit) {
  const Case cases[] = {{DType::BF16, 4, 4, 64, {1, 70, 3, 64, 192, 193}},
                        {DType::BF16, 4, 2, 64, {1300, 5, 300}},
                        {DType::BF16, 4, 1, 128, {200, 65, 129, 1}},
                        {DType::BF16, 3, 3, 40, {100, 260}},
                        {DType::BF16, 16, 16, 64, std::vector<int32_t>(12, 200)}};
  for (const Case& c : cases) {
    const Batch b = make_batch(c);
    AttentionBackward call = args(c, b, &Twin::device);
    attention_backward(cuda_, call);
    const auto sums = bytes_of(b.d_qkv.device);
    poison(b.d_qkv.device);
    cuda::attention_backward_portable(cuda_, call);
    EXPECT_EQ(sums, bytes_of(b.d_qkv.device)) << c.head_dim << ", " << c.heads << " heads";

    std::vector<int32_t> positions;
    for (const int32_t length : c.lengths) {
      for (int32_t t = 0; t < length; ++t) positions.push_back(t);
    }
    call.position = integers(positions, {b.tokens}).device;
    call.cos = random(DType::F32, {1300, c.head_dim / 2}).device;
    call.sin = random(DType::F32, {1300, c.head_dim / 2}).device;
    const TensorView rounded = device_tensor(c.dtype, b.d_qkv.device.shape);
    call.rounded = rounded;
    rope_backward(cuda_, rotation_back(call));
    const auto after = bytes_of(rounded);
    poison(rounded);
    attention_backward(cuda_, call);
    EXPECT_EQ(after, bytes_of(rounded)) << c.head_dim << ", " << c.heads << " heads, rotated";
  }
}

}  // namespace
}  // namespace dsmoe::kernels

// Cases of the ops that treat one token at a time, and of the plan.
#include <cmath>
#include <cstring>

#include "kernels/elements.h"
#include "ops/op_case.h"

namespace dsmoe::ops {
namespace {

void copy(const TensorView& from, const TensorView& to) {
  std::memcpy(to.data, from.data, from.num_bytes());
}

std::vector<double> relative_bound(const OpCase& exact, std::size_t idx, double relative) {
  std::vector<double> bounds;
  const TensorView& view = exact.outputs()[idx].view;
  for (int64_t i = 0; i < view.num_elements(); ++i) {
    bounds.push_back(relative * std::abs(element(view, i)) + 0x1p-126);
  }
  return bounds;
}

struct RowsShape {
  int64_t rows, size;
  double scale = 1;
};

class EmbeddingCase : public OpCase {
 public:
  EmbeddingCase(const Variant& variant, const RowsShape& shape) : OpCase(variant) {
    constexpr int64_t kVocabulary = 19;
    args_.table =
        random(variant.operand, {kVocabulary, shape.size}, {.stream = 1, .scale = shape.scale});
    std::vector<int32_t> ids;
    for (int64_t t = first_row(); t < first_row() + rows_of(shape.rows); ++t) {
      ids.push_back(static_cast<int32_t>(random_below(2, t, kVocabulary)));
    }
    args_.ids = ints(ids);
    args_.out = output("out", scalar(), {rows_of(shape.rows), shape.size});
  }
  void run(const Context& context) override { kernels::embedding_forward(context, args_); }
  int64_t num_rows() const override { return args_.ids.dim(0); }
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    return relative_bound(exact, idx, 0);
  }

 private:
  kernels::EmbeddingForward args_;
};

class RmsNormCase : public OpCase {
 public:
  RmsNormCase(const Variant& variant, const RowsShape& shape) : OpCase(variant), shape_(shape) {
    const int64_t rows = rows_of(shape.rows);
    args_.x = random(scalar(), {rows, shape.size},
                     {.stream = 1, .scale = shape.scale, .by_row = true, .precision = DType::F32});
    args_.weight =
        random(scalar(), {shape.size}, {.stream = 2, .mean = 1, .precision = DType::F32});
    args_.eps = 1e-6;
    args_.out = output("out", variant.operand, {rows, shape.size});
  }
  void run(const Context& context) override { kernels::rms_norm_forward(context, args_); }
  int64_t num_rows() const override { return args_.x.dim(0); }
  // Half of the sum's error (square root), the rounding of eps, and six more operations.
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    return relative_bound(exact, idx,
                          (static_cast<double>(shape_.size) / 32 + 2 + 8) * kUnit + 2 * rounding());
  }

 private:
  RowsShape shape_;
  kernels::RmsNormForward args_;
};

struct RopeShape {
  int64_t tokens, heads, kv_heads, key_width;
  enum { scattered, in_order } slots = scattered;
  int64_t value_width = key_width;
  int64_t half = key_width / 2;
  kernels::Rotation rotation = {};
  kernels::KvValues values = kernels::KvValues::own;
};

class RopeCase : public OpCase {
 public:
  RopeCase(const Variant& variant, const RopeShape& shape) : OpCase(variant) {
    constexpr int64_t kPositions = 100;
    const int64_t tokens = rows_of(shape.tokens);
    const int64_t half = shape.half;
    args_.rotation = shape.rotation;
    args_.kv = {.num_pages = kPages,
                .shape = {.dtype = variant.operand,
                          .heads = shape.kv_heads,
                          .key_width = shape.key_width,
                          .value_width = shape.value_width,
                          .values = shape.values}};
    args_.qkv =
        random(scalar(), {tokens, shape.heads * shape.key_width + args_.kv.shape.projected_width()},
               {.stream = 1, .by_row = true, .precision = DType::F32});
    args_.cos = random(DType::F32, {kPositions, half}, {.stream = 2, .scale = 0.5});
    args_.sin = random(DType::F32, {kPositions, half}, {.stream = 3, .scale = 0.5});
    std::vector<int32_t> position, slot;
    for (int64_t t = first_row(); t < first_row() + tokens; ++t) {
      position.push_back(static_cast<int32_t>(random_below(4, t, kPositions)));
      // A place of its own for every token, over several pages.
      const int64_t step = shape.slots == RopeShape::in_order ? 1 : 37;
      slot.push_back(static_cast<int32_t>((t * step + 11) % (kernels::kKeyBlock * kPages)));
    }
    args_.position = ints(position);
    args_.kv_slot = ints(slot);
    args_.q = output("q", variant.operand, {tokens, shape.heads, shape.key_width});
    const auto pages = [&](const char* name, int64_t per_head) {
      return output(name, variant.operand, {kPages * shape.kv_heads * per_head}).data;
    };
    args_.kv.keys = pages("keys", args_.kv.shape.key_head_elements());
    args_.kv.values = pages("values", args_.kv.shape.value_head_elements());
  }
  void run(const Context& context) override {
    for (const Output& output : outputs_) std::memset(output.view.data, 0, output.view.num_bytes());
    kernels::rope_forward(context, args_);
  }
  int64_t num_rows() const override { return args_.q.dim(0); }
  std::vector<std::byte> row_bytes(int64_t token) const override {
    const kernels::KvPages& kv = args_.kv;
    const std::size_t size = tensor::size_of(kv.shape.dtype);
    std::vector<std::byte> all;
    const auto append = [&](const void* data, int64_t idx, int64_t count) {
      const auto* begin =
          static_cast<const std::byte*>(data) + static_cast<std::size_t>(idx) * size;
      all.insert(all.end(), begin, begin + static_cast<std::size_t>(count) * size);
    };
    const int64_t row = args_.q.dim(1) * kv.shape.key_width;
    append(args_.q.data, token * row, row);
    const int64_t slot = args_.kv_slot.as<int32_t>()[token];
    for (int64_t h = 0; h < kv.shape.heads; ++h) {
      for (int64_t d = 0; d < kv.shape.key_width; ++d) {
        append(kv.keys, kv.shape.key_offset(slot / 64, h) + kv.shape.key_index(slot % 64, d), 1);
      }
      for (int64_t d = 0; d < kv.shape.value_width; ++d) {
        append(kv.values, kv.shape.value_offset(slot / 64, h) + kv.shape.value_index(slot % 64, d),
               1);
      }
    }
    return all;
  }
  // |a c| + |b s| is at most 2 * 5 * 5 / 2 here: normal numbers of these tests stay below 5
  // and 2.5.
  bool has_bound(std::size_t idx) const override {
    return idx == 0;
  }  // page layouts differ between F64 and BF16
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    std::vector<double> bounds = relative_bound(exact, idx, rounding());
    for (double& b : bounds) b += 3 * kUnit * 25;
    return bounds;
  }

 private:
  static constexpr int64_t kPages = 3;
  kernels::RopeForward args_;
};

struct CombineShape {
  int64_t tokens, experts, top_k, hidden;
  enum { both, routed_only, shared_only, gradient, gated } kind = both;
};

class CombineCase : public OpCase {
 public:
  CombineCase(const Variant& variant, const CombineShape& shape) : OpCase(variant), shape_(shape) {
    const int64_t tokens = rows_of(shape.tokens);
    if (shape.kind != CombineShape::shared_only) add_routed(tokens);
    if (shape.kind == CombineShape::gradient) {
      args_.gate = {};
      args_.store = kernels::Store::assign;
    } else if (shape.kind != CombineShape::routed_only) {
      args_.shared = random(variant.operand, {tokens, shape.hidden}, {.stream = 3, .by_row = true});
    }
    if (shape.kind == CombineShape::gated)
      args_.shared_gate =
          random(scalar(), {tokens, 1}, {.stream = 7, .by_row = true, .precision = DType::F32});
    before_ = random(scalar(), {tokens, shape.hidden},
                     {.stream = 4, .by_row = true, .precision = DType::F32});
    args_.residual = output("residual", scalar(), {tokens, shape.hidden});
  }
  void run(const Context& context) override {
    copy(before_, args_.residual);
    kernels::combine_forward(context, args_);
  }
  int64_t num_rows() const override { return args_.residual.dim(0); }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase& magnitude) const override {
    std::vector<double> bounds;
    const TensorView& sums = magnitude.outputs()[0].view;
    const double depth = std::ceil(std::log2(static_cast<double>(shape_.experts) + 1));
    for (int64_t i = 0; i < sums.num_elements(); ++i)
      bounds.push_back((depth + 4) * kUnit * element(sums, i));
    return bounds;
  }

 private:
  void add_routed(int64_t tokens) {
    const int64_t top_k = shape_.top_k;
    std::vector<int32_t> index, row_of_slot;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t global = first_row() + t;
      const int64_t start = random_below(5, global, shape_.experts);
      // 7 is prime to the numbers of experts used: top_k different ones, not in order.
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const bool absent = (slot > 0 || shape_.kind == CombineShape::gradient) &&
                            random_below(6, global * top_k + slot, 4) == 0;
        index.push_back(absent ? -1 : static_cast<int32_t>((start + 7 * slot) % shape_.experts));
        row_of_slot.push_back(absent ? -1 : static_cast<int32_t>(t * top_k + (slot + t) % top_k));
      }
    }
    args_.index = ints(index);
    args_.row_of_slot = ints(row_of_slot);
    args_.index.shape = args_.row_of_slot.shape = {tokens, top_k};
    args_.gate =
        random(scalar(), {tokens, top_k}, {.stream = 1, .by_row = true, .precision = DType::F32});
    // Rows by slot, then moved to where row_of_slot says, so that a token alone meets the same
    // numbers.
    const TensorView by_slot =
        random(variant_.operand, {tokens, top_k * shape_.hidden}, {.stream = 2, .by_row = true});
    args_.routed = tensor(variant_.operand, {tokens * top_k, shape_.hidden});
    const std::size_t bytes =
        static_cast<std::size_t>(shape_.hidden) * tensor::size_of(variant_.operand);
    for (std::size_t slot = 0; slot < row_of_slot.size(); ++slot) {
      if (row_of_slot[slot] < 0) continue;
      std::memcpy(static_cast<char*>(args_.routed.data) +
                      static_cast<std::size_t>(row_of_slot[slot]) * bytes,
                  static_cast<const char*>(by_slot.data) + slot * bytes, bytes);
    }
  }

  CombineShape shape_;
  kernels::CombineForward args_;
  TensorView before_;
};

class LogProbCase : public OpCase {
 public:
  LogProbCase(const Variant& variant, const RowsShape& shape) : OpCase(variant), shape_(shape) {
    const int64_t rows = rows_of(shape.rows);
    args_.logits =
        random(scalar(), {rows, shape.size},
               {.stream = 1, .scale = shape.scale, .by_row = true, .precision = DType::F32});
    std::vector<int32_t> target;
    for (int64_t r = first_row(); r < first_row() + rows; ++r) {
      target.push_back(r % 4 == 3 ? -1 : static_cast<int32_t>(random_below(2, r, shape.size)));
    }
    args_.target = ints(target);
    args_.log_prob = output("log_prob", scalar(), {rows});
    args_.argmax = output("argmax", DType::I32, {rows});
  }
  void run(const Context& context) override { kernels::log_prob_forward(context, args_); }
  int64_t num_rows() const override { return args_.logits.dim(0); }
  // Logits below 6 * scale: each difference from the maximum errs by a unit of 12 * scale, and
  // moves the sum by as much.
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    std::vector<double> bounds = relative_bound(exact, idx, 2 * kUnit);
    for (double& b : bounds) {
      b += (static_cast<double>(shape_.size) / 16 + 4 + 4 + 3 * 14 * shape_.scale) * kUnit;
    }
    return bounds;
  }

 private:
  RowsShape shape_;
  kernels::LogProbForward args_;
};

// Few values, so that maxima tie; one row in four holds a number that is not finite.
class ArgmaxCase : public OpCase {
 public:
  ArgmaxCase(const Variant& variant, const RowsShape& shape) : OpCase(variant) {
    const int64_t rows = rows_of(shape.rows);
    args_.logits = random(scalar(), {rows, shape.size}, {.stream = 1, .precision = DType::F32});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t v = 0; v < shape.size; ++v) {
        const auto value =
            static_cast<double>(random_below(2, (first_row() + r) * shape.size + v, 9));
        kernels::write_element(args_.logits.data, scalar(), r * shape.size + v, value - 4);
      }
      if ((first_row() + r) % 4 == 3) {
        kernels::write_element(args_.logits.data, scalar(), r * shape.size + shape.size / 2,
                               std::nan(""));
      }
    }
    args_.index = output("index", DType::I32, {rows});
  }
  void run(const Context& context) override { kernels::argmax_forward(context, args_); }
  int64_t num_rows() const override { return args_.logits.dim(0); }
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    return relative_bound(exact, idx, 0);
  }

 private:
  kernels::ArgmaxForward args_;
};

// Every truncation alone and all together; few values, so that weights tie; one row without a best.
class SampleCase : public OpCase {
 public:
  SampleCase(const Variant& variant, const RowsShape& shape) : OpCase(variant) {
    const int64_t rows = rows_of(shape.rows);
    args_.logits = tensor(DType::F32, {rows, shape.size});
    std::vector<int32_t> best;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first_row() + r;
      float* logits = args_.logits.as<float>() + r * shape.size;
      for (int64_t v = 0; v < shape.size; ++v) {
        logits[v] = static_cast<float>(random_below(2, row * shape.size + v, 90)) / 8;
      }
      best.push_back(static_cast<int32_t>(std::max_element(logits, logits + shape.size) - logits));
      if (row == 1) best.back() = -1;
      rules_.push_back({.draw = static_cast<uint64_t>(random_below(3, row, int64_t{1} << 62)) << 2,
                        .top_p = row % 5 == 1 || row % 5 == 4 ? 0.9 : 1,
                        .scale = row % 2 == 0 ? 1.0f : 1 / 3.0f,
                        .least = row % 5 == 2 || row % 5 == 4 ? 0.01f : 0,
                        .top_k = row % 5 == 3 || row % 5 == 4 ? 40 : 0});
    }
    args_.best = ints(best);
    args_.rule = rules_;
    args_.index = output("index", DType::I32, {rows});
  }
  void run(const Context& context) override { kernels::sample_forward(context, args_); }
  int64_t num_rows() const override { return args_.logits.dim(0); }
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    return relative_bound(exact, idx, 0);
  }

 private:
  std::vector<kernels::SampleRule> rules_;
  kernels::SampleForward args_;
};

struct PlanShape {
  int64_t tokens, experts, top_k;
};

class PlanCase : public OpCase {
 public:
  PlanCase(const Variant& variant, const PlanShape& shape) : OpCase(variant) {
    std::vector<int32_t> index;
    for (int64_t slot = 0; slot < shape.tokens * shape.top_k; ++slot) {
      index.push_back(static_cast<int32_t>(random_below(1, slot, shape.experts + 1)) - 1);
    }
    const auto end = static_cast<int32_t>(shape.tokens);
    args_.index = ints(index);
    args_.index.shape = {shape.tokens, shape.top_k};
    args_.sequence_starts = ints({0, end / 3, end / 3, end});
    args_.plan.expert_offsets = output("expert_offsets", DType::I32, {shape.experts + 1});
    args_.plan.sequence_offsets = output("sequence_offsets", DType::I32, {shape.experts, 4});
    args_.plan.token_of_row = output("token_of_row", DType::I32, {shape.tokens * shape.top_k});
    args_.plan.row_of_slot = output("row_of_slot", DType::I32, args_.index.shape);
  }
  void run(const Context& context) override { kernels::plan_build(context, args_); }
  int64_t num_rows() const override { return 0; }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase&) const override { return {}; }

 private:
  kernels::PlanBuild args_;
};

template <class Case, class Sizes>
void add(std::vector<OpEntry>& cases, const char* op, const char* name, Sizes shape) {
  cases.push_back(
      {op, name, [=](const Variant& variant) { return std::make_unique<Case>(variant, shape); }});
}

}  // namespace

void add_row_cases(std::vector<OpEntry>& cases) {
  add<EmbeddingCase>(cases, "embedding_forward", "even", RowsShape{5, 64});
  add<EmbeddingCase>(cases, "embedding_forward", "odd", RowsShape{9, 43});
  add<RmsNormCase>(cases, "rms_norm_forward", "even", RowsShape{4, 64});
  add<RmsNormCase>(cases, "rms_norm_forward", "odd", RowsShape{9, 43});
  add<RmsNormCase>(cases, "rms_norm_forward", "short", RowsShape{3, 5});
  add<RmsNormCase>(cases, "rms_norm_forward", "long", RowsShape{40, 2051});
  add<RmsNormCase>(cases, "rms_norm_forward", "denormal_squares", RowsShape{3, 50, 0x1p-65});
  add<RopeCase>(cases, "rope_forward", "even", RopeShape{5, 4, 2, 32});
  add<RopeCase>(cases, "rope_forward", "odd", RopeShape{7, 3, 1, 10});
  add<RopeCase>(cases, "rope_forward", "many_tokens", RopeShape{150, 4, 4, 34});
  add<RopeCase>(cases, "rope_forward", "in_order", RopeShape{150, 3, 2, 34, RopeShape::in_order});
  add<RopeCase>(cases, "rope_forward", "whole_panels",
                RopeShape{90, 2, 2, 64, RopeShape::in_order});
  const kernels::Rotation neighbours{.begin = 12, .pairs = kernels::RotaryPairs::neighbours};
  add<RopeCase>(cases, "rope_forward", "partial",
                RopeShape{90, 3, 2, 34, RopeShape::in_order, 34, 8});
  add<RopeCase>(cases, "rope_forward", "neighbours",
                RopeShape{40, 3, 3, 22, RopeShape::in_order, 13, 5, neighbours});
  add<RopeCase>(cases, "rope_forward", "prefix_of_key",
                RopeShape{90, 4, 1, 32, RopeShape::in_order, 12, 10, neighbours,
                          kernels::KvValues::prefix_of_key});
  add<CombineCase>(cases, "combine_forward", "gated",
                   CombineShape{9, 5, 3, 43, CombineShape::gated});
  add<CombineCase>(cases, "combine_forward", "released", CombineShape{6, 64, 6, 80});
  add<CombineCase>(cases, "combine_forward", "odd", CombineShape{9, 5, 3, 43});
  add<CombineCase>(cases, "combine_forward", "all_experts",
                   CombineShape{4, 23, 23, 30, CombineShape::routed_only});
  add<CombineCase>(cases, "combine_forward", "one_expert", CombineShape{4, 9, 1, 17});
  add<CombineCase>(cases, "combine_forward", "shared_only",
                   CombineShape{3, 0, 0, 37, CombineShape::shared_only});
  add<CombineCase>(cases, "combine_forward", "many_tokens", CombineShape{70, 64, 6, 130});
  add<CombineCase>(cases, "combine_forward", "gradient",
                   CombineShape{30, 9, 2, 45, CombineShape::gradient});
  add<ArgmaxCase>(cases, "argmax_forward", "odd", RowsShape{9, 203});
  add<ArgmaxCase>(cases, "argmax_forward", "short", RowsShape{2, 3});
  add<ArgmaxCase>(cases, "argmax_forward", "long", RowsShape{6, 4111});
  add<SampleCase>(cases, "sample_forward", "odd", RowsShape{12, 203});
  add<SampleCase>(cases, "sample_forward", "short", RowsShape{6, 3});
  add<SampleCase>(cases, "sample_forward", "long", RowsShape{10, 4111});
  add<LogProbCase>(cases, "log_prob_forward", "odd", RowsShape{9, 203, 3});
  add<LogProbCase>(cases, "log_prob_forward", "short", RowsShape{2, 3, 30});
  add<LogProbCase>(cases, "log_prob_forward", "long", RowsShape{5, 4111, 8});
  add<PlanCase>(cases, "plan_build", "even", PlanShape{30, 8, 3});
  add<PlanCase>(cases, "plan_build", "odd", PlanShape{7, 5, 2});
}

}  // namespace dsmoe::ops

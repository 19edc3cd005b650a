// Inputs of op cases, and the modes of the harness.
#include "ops/op_case.h"

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/elements.h"

namespace dsmoe::ops {
namespace {

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

Context ref_context() { return {.table = &kernels::ref_table(), .pool = &one_thread()}; }

double rounded_to(double value, DType precision) {
  switch (precision) {
    case DType::BF16:
      return tensor::to_float(tensor::to_bf16(static_cast<float>(value)));
    case DType::F32:
      return static_cast<float>(value);
    default:
      return value;
  }
}

std::vector<std::byte> bytes_of(const TensorView& view) {
  const auto* data = static_cast<const std::byte*>(view.data);
  return {data, data + view.num_bytes()};
}

}  // namespace

std::vector<std::byte> OpCase::row_bytes(int64_t row) const {
  std::vector<std::byte> all;
  for (const Output& output : outputs_) {
    const auto bytes = bytes_of(output.view.rows(row, row + 1));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TensorView OpCase::random(DType dtype, const Shape& shape, const Fill& fill) {
  const TensorView view = tensor(dtype, shape);
  const DType precision = fill.precision == DType::F64 ? variant_.precision : fill.precision;
  const Rng rng{.seed = 7, .purpose = RngPurpose::test, .stream = fill.stream};
  const int64_t row = shape[0] > 0 ? shape.num_elements() / shape[0] : 0;
  const int64_t first = fill.by_row ? first_row() * row : 0;
  std::vector<float> normal(static_cast<std::size_t>(shape.num_elements()));
  rng.fill_normal(static_cast<uint64_t>(first), normal);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    double value =
        fill.mean + fill.scale * static_cast<double>(normal[static_cast<std::size_t>(i)]);
    if (variant_.signs == Signs::absolute) value = std::abs(value);
    kernels::write_element(view.data, dtype, i, rounded_to(value, precision));
  }
  return view;
}

TensorView OpCase::ints(const std::vector<int32_t>& values) {
  const TensorView view = tensor(DType::I32, {static_cast<int64_t>(values.size())});
  std::memcpy(view.data, values.data(), values.size() * sizeof(int32_t));
  return view;
}

kernels::WeightStack OpCase::weights(DType dtype, int64_t count, int64_t n, int64_t k,
                                     const Fill& fill) {
  kernels::WeightStack stack{
      .dtype = dtype, .layout = kernels::WeightLayout::panels, .count = count, .n = n, .k = k};
  if (dtype == DType::BF16) stack.coding = fill.coding;
  stack.data = arena_.bytes("weights", stack.num_bytes() + 64);
  for (int64_t i = 0; i < count; ++i) {
    if (fill.coding != kernels::WeightCoding::plain) {
      pack_integers(stack, i, fill);
      continue;
    }
    const TensorView source = random(dtype, {n, k},
                                     {.stream = fill.stream + 1000 * static_cast<uint32_t>(i + 1),
                                      .scale = fill.scale,
                                      .mean = fill.mean,
                                      .precision = fill.precision});
    kernels::pack_weight(ref_context(), {.source = source, .target = stack, .matrix_idx = i});
  }
  return stack;
}

namespace {

// Kernels have a shorter way for groups whose scales have one (int8) or three (int4) significant
// bits and a moderate size: every other group is one, but for an output here and there. Tiles want
// them positive as well: every eighth.
tensor::Bf16 some_shorter(tensor::Bf16 scale, int64_t row, int64_t group, bool is_int8) {
  if (group % 2 == 1) return scale;
  const auto shorter = static_cast<uint16_t>(scale.bits & (is_int8 ? 0xff80u : 0xffe0u));
  if (row % 7 == 3) return {0};
  if (group % 4 == 2 && row % 16 == 5) return scale;
  if (group % 8 == 4 && row % 16 == 9) return {static_cast<uint16_t>(shorter - (40u << 7))};
  if (group % 8 == 0) return {static_cast<uint16_t>(shorter & 0x7fff)};
  return {shorter};
}

}  // namespace

void OpCase::pack_integers(const kernels::WeightStack& stack, int64_t matrix_idx,
                           const Fill& fill) {
  const int64_t row_bytes = tensor::coded_row_bytes(fill.coding, stack.k);
  const int64_t groups = tensor::num_groups(stack.k);
  const Rng rng{.seed = 9,
                .purpose = RngPurpose::test,
                .stream = fill.stream + 1000 * static_cast<uint32_t>(matrix_idx + 1)};
  const TensorView source = tensor(tensor::stored_type(fill.coding), {stack.n, row_bytes});
  const TensorView scale = tensor(DType::BF16, {stack.n, groups});
  for (int64_t i = 0; i < source.num_elements(); ++i) {
    static_cast<uint8_t*>(source.data)[i] =
        static_cast<uint8_t>(rng.below(static_cast<uint64_t>(i), 256));
  }
  const bool is_int8 = fill.coding == kernels::WeightCoding::int8;
  for (int64_t i = 0; i < scale.num_elements(); ++i) {
    const double size = fill.scale / (is_int8 ? 74 : 4.6) *
                        (0.5 + rng.uniform_f64(static_cast<uint64_t>(source.num_elements() + i)));
    tensor::Bf16 value = tensor::to_bf16(static_cast<float>(i % 3 == 1 ? -size : size));
    if (!is_int8) value.bits &= 0xfff8u;  // five significant bits
    scale.as<tensor::Bf16>()[i] = some_shorter(value, i / groups, i % groups, is_int8);
  }
  if (stack.coding != kernels::WeightCoding::plain) {
    return kernels::pack_weight(
        ref_context(),
        {.source = source, .scale = scale, .target = stack, .matrix_idx = matrix_idx});
  }
  const TensorView numbers = tensor(DType::F64, {stack.n, stack.k});
  for (int64_t i = 0; i < numbers.num_elements(); ++i) {
    const int64_t row = i / stack.k;
    const int64_t k = i % stack.k;
    const int q = tensor::coded_element(
        fill.coding, static_cast<const uint8_t*>(source.data) + row * row_bytes, k);
    const double w = tensor::to_float(
        tensor::dequantise(scale.as<tensor::Bf16>()[row * groups + k / tensor::kGroupSize], q));
    numbers.as<double>()[i] = variant_.signs == Signs::absolute ? std::abs(w) : w;
  }
  kernels::pack_weight(ref_context(),
                       {.source = numbers, .target = stack, .matrix_idx = matrix_idx});
}

TensorView OpCase::output(const std::string& name, DType dtype, const Shape& shape) {
  outputs_.push_back({name, tensor(dtype, shape)});
  return outputs_.back().view;
}

double OpCase::rounding() const {
  return variant_.operand == DType::BF16 ? 0x1p-8 : variant_.operand == DType::F32 ? kUnit : 0;
}

double product_gamma(DType operand, int64_t k) {
  const auto blocks = [&](int64_t size) { return static_cast<double>((k + size - 1) / size); };
  return (operand == DType::BF16 ? blocks(32) + 17 : blocks(256) + 256) * kUnit;
}

double element(const TensorView& view, int64_t idx) {
  return kernels::read_element(view.data, view.dtype, idx);
}

int64_t random_below(uint32_t stream, uint64_t idx, int64_t bound) {
  const Rng rng{.seed = 11, .purpose = RngPurpose::test, .stream = stream};
  return static_cast<int64_t>(rng.below(idx, static_cast<uint64_t>(bound)));
}

std::vector<OpEntry> all_cases() {
  std::vector<OpEntry> cases;
  add_product_cases(cases);
  add_row_cases(cases);
  add_attention_cases(cases);
  add_head_cases(cases);
  add_gradient_product_cases(cases);
  add_gradient_row_cases(cases);
  add_gradient_attention_cases(cases);
  return cases;
}

RefResult::RefResult(const OpEntry& entry, DType operand)
    : entry_(entry),
      variant_{.operand = operand, .precision = operand},
      expected_(entry.make(variant_)) {
  expected_->run(ref_context());
}

std::string RefResult::difference(const kernels::KernelTable& table, int threads) const {
  ThreadPool pool(threads);
  const auto actual = entry_.make(variant_);
  std::string differences;
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second run meets used scratch memory
    actual->run({.table = &table, .pool = &pool});
    for (std::size_t i = 0; i < expected_->outputs().size(); ++i) {
      const Output& a = actual->outputs()[i];
      const Output& b = expected_->outputs()[i];
      if (std::memcmp(a.view.data, b.view.data, b.view.num_bytes()) == 0) continue;
      differences += fmt::format("{} {} {} {} threads {}: {} differs\n", entry_.op, entry_.name,
                                 table.name, tensor::name_of(variant_.operand), threads, a.name);
    }
  }
  return differences;
}

std::string batch_dependence(const OpEntry& entry, const kernels::KernelTable& table,
                             DType operand) {
  const Context context{.table = &table, .pool = &one_thread()};
  const auto batch = entry.make({.operand = operand, .precision = operand});
  batch->run(context);
  // Some twelve rows, the first and the last among them.
  const int64_t last = batch->num_rows() - 1;
  const int64_t step = std::max<int64_t>(1, last / 11);
  for (int64_t i = 0; i <= last + step - 1; i += step) {
    const int64_t row = std::min(i, last);
    const auto alone = entry.make({.operand = operand, .precision = operand, .only_row = row});
    alone->run(context);
    if (batch->row_bytes(row) != alone->row_bytes(0)) {
      return fmt::format("{} {} {} {}: row {} alone differs from row {} of {}", entry.op,
                         entry.name, table.name, tensor::name_of(operand), row, row,
                         batch->num_rows());
    }
  }
  return "";
}

std::string outside_bound(const OpEntry& entry, DType operand) {
  const auto rounded = entry.make({.operand = operand, .precision = operand});
  const auto exact = entry.make({.operand = DType::F64, .precision = operand});
  const auto magnitude =
      entry.make({.operand = DType::F64, .precision = operand, .signs = Signs::absolute});
  for (OpCase* c : {rounded.get(), exact.get(), magnitude.get()}) c->run(ref_context());
  for (std::size_t i = 0; i < rounded->outputs().size(); ++i) {
    if (!rounded->has_bound(i)) continue;
    const TensorView& view = rounded->outputs()[i].view;
    const std::vector<double> bound = rounded->bound(i, *exact, *magnitude);
    for (int64_t j = 0; j < view.num_elements(); ++j) {
      const double error = std::abs(element(view, j) - element(exact->outputs()[i].view, j));
      if (!(error <= bound[j])) {
        return fmt::format("{} {} {}: {}[{}] is {}, exact {}, error {} above {}", entry.op,
                           entry.name, tensor::name_of(operand), rounded->outputs()[i].name, j,
                           element(view, j), element(exact->outputs()[i].view, j), error, bound[j]);
      }
    }
  }
  return "";
}

std::vector<std::string> own_ops(const kernels::KernelTable& table) {
  const kernels::KernelTable& ref = kernels::ref_table();
  std::vector<std::string> own;
#define DSMOE_ADD(name, Arguments) \
  if (table.name != ref.name) own.emplace_back(#name);
  DSMOE_OPS(DSMOE_ADD)
  DSMOE_OPS_OF_CPU(DSMOE_ADD)
#undef DSMOE_ADD
  return own;
}

}  // namespace dsmoe::ops

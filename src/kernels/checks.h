// The checks that op dispatchers share. Every message names the op, the argument, what was expected
// and what came.
#pragma once

#include <string_view>

#include "base/flush_denormals.h"
#include "kernels/kv_pages.h"
#include "kernels/rope.h"
#include "kernels/rows.h"
#include "kernels/table.h"
#include "kernels/weight.h"

namespace dsmoe::kernels {

struct WeightShape {
  int64_t count = 1;
  int64_t n = 0;
  int64_t k = 0;
  int64_t rows = 0;  // of its input
  bool takes_integers = false;
};

// Checks the arguments of one op call.
class OpCheck {
 public:
  OpCheck(const char* op, const Context& context) : op_(op), device_(context.table->device) {}

  // A tensor of exactly this type and shape, on the table's device.
  void tensor(const char* name, const TensorView& view, DType dtype, const Shape& shape) const {
    DSMOE_CHECK(view.data != nullptr, "{}: {} is absent", op_, name);
    DSMOE_CHECK(view.device == device_, "{}: {} lies on another device", op_, name);
    DSMOE_CHECK(view.dtype == dtype && view.shape == shape, "{}: {} is {} {}, expected {} {}", op_,
                name, tensor::name_of(view.dtype), to_string(view.shape), tensor::name_of(dtype),
                to_string(shape));
  }
  void optional(const char* name, const TensorView& view, DType dtype, const Shape& shape) const {
    if (view) tensor(name, view, dtype, shape);
  }
  void rank(const char* name, const TensorView& view, int rank) const {
    DSMOE_CHECK(view.data != nullptr && view.shape.rank() == rank,
                "{}: {} has shape {}, expected {} dimensions", op_, name, to_string(view.shape),
                rank);
  }
  // At least so many rows of so many columns.
  void rows(const char* name, const Rows& rows, DType dtype, int64_t count, int64_t columns) const {
    tensor(name, rows.x, dtype, {rows.x.shape.rank() == 2 ? rows.x.dim(0) : 0, columns});
    if (rows.index) tensor(name, rows.index, DType::I32, {count});
    DSMOE_CHECK(rows.count() >= count, "{}: {} has {} rows, expected {}", op_, name, rows.count(),
                count);
  }
  // Pages that keys of q's width and type lie in. CUDA's kernels take one width so far.
  void pages(const KvPages& kv, const TensorView& q) const {
    const bool takes = device_ == Device::cpu || kv.shape.has_one_width();
    DSMOE_CHECK(takes && kv.shape.key_width == q.dim(2),
                "{}: the KV pages hold keys of {} and values of {}{}, expected keys of {}{}", op_,
                kv.shape.key_width, kv.shape.value_width,
                kv.shape.values == KvValues::own ? "" : ", a part of the keys", q.dim(2),
                takes ? "" : " and values of their own, as wide");
    that(kv.shape.dtype == q.dtype, "q and the KV pages differ in type");
  }
  // CUDA's kernels turn whole heads by halves so far.
  void rotation(const TensorView& cos, const TensorView& sin, const Rotation& rotation,
                int64_t key_width) const {
    rank("cos", cos, 2);
    const int64_t width = 2 * cos.dim(1);
    that(rotation.begin >= 0 && rotation.begin + width <= key_width,
         "more of a head is to be rotated than it has");
    that(device_ == Device::cpu || (width == key_width && rotation.pairs == RotaryPairs::halves),
         "CUDA rotates whole heads by halves only");
    tensor("cos", cos, DType::F32, cos.shape);
    tensor("sin", sin, DType::F32, cos.shape);
  }
  // Plain weights: what every op takes.
  void weights(const char* name, const WeightStack& stack, DType dtype, int64_t count, int64_t n,
               int64_t k) const {
    weights_or_integers(name, stack, dtype, count, n, k);
    DSMOE_CHECK(stack.coding == tensor::WeightCoding::plain,
                "{}: {} holds {} integers; this op takes numbers only", op_, name,
                tensor::name_of(stack.coding));
  }
  // Or integers that stand for numbers of type dtype: the products of the forward pass.
  void weights_or_integers(const char* name, const WeightStack& stack, DType dtype, int64_t count,
                           int64_t n, int64_t k) const {
    DSMOE_CHECK(stack.data != nullptr && stack.dtype == dtype && stack.count == count &&
                    stack.n == n && stack.k == k && stack.device == device_,
                "{}: {} is {} x [{}, {}] {}, expected {} x [{}, {}] {}", op_, name, stack.count,
                stack.n, stack.k, tensor::name_of(stack.dtype), count, n, k,
                tensor::name_of(dtype));
  }
  // A weight for so many rows: its stack, of numbers or of integers, and its adapter if it has one.
  void weight(const char* name, const Weight& weight, DType dtype, const WeightShape& shape) const {
    if (shape.takes_integers) {
      weights_or_integers(name, weight.stack, dtype, shape.count, shape.n, shape.k);
    } else {
      weights(name, weight.stack, dtype, shape.count, shape.n, shape.k);
    }
    const Adapter& adapter = weight.adapter;
    if (!adapter) return;
    DSMOE_CHECK(device_ == Device::cpu, "{}: {} has an adapter; only the CPU's ops take one yet",
                op_, name);
    const int64_t rank = adapter.a.n;
    weights(name, adapter.a, dtype, shape.count, rank, shape.k);
    weights(name, adapter.b, dtype, shape.count, shape.n, rank);
    tensor("the adapter's inner", adapter.inner, dtype, {shape.rows, rank});
  }
  void operand(const char* name, DType dtype) const {
    DSMOE_CHECK(dtype == DType::BF16 || dtype == DType::F32 || dtype == DType::F64,
                "{}: {} is {}, expected BF16, F32 or F64", op_, name, tensor::name_of(dtype));
  }
  // A part of an op's columns, which only some tables take.
  void whole(bool is_whole, const Context& context) const {
    DSMOE_CHECK(is_whole || context.table->takes_parts != nullptr,
                "{}: the table {} takes no parts", op_, context.table->name);
  }
  void that(bool condition, const char* what) const { DSMOE_CHECK(condition, "{}: {}", op_, what); }

 private:
  const char* op_;
  Device device_;
};

// The type of accumulators and statistics beside an operand type.
constexpr DType scalar_type(DType operand) {
  return operand == DType::F64 ? DType::F64 : DType::F32;
}

// Faster tables know no adapters: products with one run in the reference, with the same bits.
inline Context reference_of(const Context& context) {
  Context own = context;
  own.table = &ref_table();
  return own;
}

// What a fused op says where its slot is empty.
inline constexpr Attempt kNoKernel{"the table has no such kernel"};

// Calls the table's implementation with denormals flushed. Only ref knows F64.
template <class Args>
void launch(const Context& context, DType operand,
            void (*KernelTable::*op)(const Context&, const Args&), const Args& args) {
  const FlushDenormals guard;
  const KernelTable& table = operand == DType::F64 ? ref_table() : *context.table;
  (table.*op)(context, args);
}

}  // namespace dsmoe::kernels

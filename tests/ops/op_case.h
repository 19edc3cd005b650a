// OpCase: one call of one op, with its inputs, that any kernel table can run. The unit of every
// mode of the op harness.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/table.h"
#include "tensor/arena.h"

namespace dsmoe::ops {

using kernels::Context;
using kernels::DType;
using kernels::Shape;
using kernels::TensorView;

enum class Signs { both, absolute };

// How to make a case. Inputs are functions of their place (base/rng.h), so that variants of one
// case hold the same numbers.
struct Variant {
  DType operand = DType::BF16;
  DType precision =
      DType::BF16;  // what inputs are rounded to; a case in F64 takes those of BF16 or F32
  Signs signs = Signs::both;  // absolute: for the sums of magnitudes in error bounds
  int64_t only_row = -1;      // the case of this row alone
};

struct Output {
  std::string name;
  TensorView view;
};

class OpCase {
 public:
  explicit OpCase(const Variant& variant) : variant_(variant), arena_("op case") {}
  virtual ~OpCase() = default;

  // Puts every output back to what it was before the first run, then calls the op.
  virtual void run(const Context& context) = 0;

  const std::vector<Output>& outputs() const { return outputs_; }
  // Rows of the batch that can be computed alone.
  virtual int64_t num_rows() const = 0;
  // All results of one row.
  virtual std::vector<std::byte> row_bytes(int64_t row) const;
  // Largest allowed |result - exact| of each element of output `idx`; docs/numerics.md, "Bounds".
  // `exact` is this case in F64, `magnitude` likewise with absolute inputs. Integer outputs are
  // compared exactly unless a case says otherwise.
  virtual std::vector<double> bound(std::size_t idx, const OpCase& exact,
                                    const OpCase& magnitude) const = 0;
  virtual bool has_bound(std::size_t idx) const { return outputs_[idx].view.dtype != DType::I32; }

 protected:
  // F32, or F64 beside F64 operands.
  DType scalar() const { return variant_.operand == DType::F64 ? DType::F64 : DType::F32; }
  bool alone() const { return variant_.only_row >= 0; }
  // Rows this case holds of `rows`, and the index of its first.
  int64_t rows_of(int64_t rows) const { return alone() ? 1 : rows; }
  int64_t first_row() const { return alone() ? variant_.only_row : 0; }

  TensorView tensor(DType dtype, const Shape& shape) { return arena_.tensor("case", dtype, shape); }
  // Normal numbers times scale, rounded to the variant's precision. `stream` names the tensor; rows
  // of a batch are cut out.
  struct Fill {
    uint32_t stream = 0;
    double scale = 1;
    double mean = 0;
    bool by_row = false;           // the first dimension is the batch
    DType precision = DType::F64;  // F64: the variant's
    kernels::WeightCoding coding = kernels::WeightCoding::plain;  // of weights()
  };
  TensorView random(DType dtype, const Shape& shape, const Fill& fill);
  TensorView ints(const std::vector<int32_t>& values);
  // With a coding: any integers and scales; integers in BF16 cases, in others the numbers they
  // stand for.
  kernels::WeightStack weights(DType dtype, int64_t count, int64_t n, int64_t k, const Fill& fill);
  TensorView output(const std::string& name, DType dtype, const Shape& shape);

  void pack_integers(const kernels::WeightStack& stack, int64_t matrix_idx, const Fill& fill);

  // The relative error of a rounding to the operand type: 2^-8 (8 significant bits), 2^-24, or
  // nothing.
  double rounding() const;

  Variant variant_;
  tensor::Arena arena_;
  std::vector<Output> outputs_;
};

constexpr double kUnit = 0x1p-24;  // unit roundoff of F32

// gamma of a product of length k in the rule of a type.
double product_gamma(DType operand, int64_t k);

double element(const TensorView& view, int64_t idx);

// Uniform in [0, bound), a function of (stream, idx).
int64_t random_below(uint32_t stream, uint64_t idx, int64_t bound);

struct OpEntry {
  std::string op;    // "matmul_forward"
  std::string name;  // "odd"
  std::function<std::unique_ptr<OpCase>(const Variant&)> make;
};

// Every op, every case; odd sizes included.
std::vector<OpEntry> all_cases();
void add_product_cases(std::vector<OpEntry>& cases);
void add_row_cases(std::vector<OpEntry>& cases);
void add_attention_cases(std::vector<OpEntry>& cases);
void add_head_cases(std::vector<OpEntry>& cases);
void add_gradient_product_cases(std::vector<OpEntry>& cases);
void add_gradient_row_cases(std::vector<OpEntry>& cases);
void add_gradient_attention_cases(std::vector<OpEntry>& cases);

// --- the modes ---

// Parity: what ref makes of a case, computed once for all tables and numbers of threads.
class RefResult {
 public:
  RefResult(const OpEntry& entry, DType operand);
  // The outputs of `table` that differ from those of ref, "" when none does.
  std::string difference(const kernels::KernelTable& table, int threads) const;

 private:
  OpEntry entry_;
  Variant variant_;
  std::unique_ptr<OpCase> expected_;
};
// Batch invariance: the first row whose results alone differ from those in the batch.
std::string batch_dependence(const OpEntry& entry, const kernels::KernelTable& table,
                             DType operand);
// Bounds: the first result of ref<float> further from ref<double> than its derived bound.
std::string outside_bound(const OpEntry& entry, DType operand);
// Gradients: tests/gradients. Speed: bench/ops_bench.cc, by hand. Support: the slots a table fills
// itself, one name per line.
std::vector<std::string> own_ops(const kernels::KernelTable& table);

}  // namespace dsmoe::ops

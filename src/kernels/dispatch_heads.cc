// Checks of the ops on heads and of the shared experts' gate.
#include "kernels/checks.h"
#include "kernels/heads.h"
#include "kernels/shared_gate.h"

namespace dsmoe::kernels {
namespace {

void check_columns(const OpCheck& check, const MoveColumns& args, const char* name,
                   const Columns& columns) {
  check.rank(name, columns.rows, 2);
  check.tensor(name, columns.rows, columns.rows.dtype, columns.rows.shape);
  const int64_t last = columns.begin + (args.groups - 1) * columns.step;
  check.that(columns.begin >= 0 && columns.step >= 0 && last + args.width <= columns.rows.dim(1),
             "columns past the end of their rows");
}

}  // namespace

void move_columns(const Context& context, const MoveColumns& args) {
  const OpCheck check("move_columns", context);
  check.that(args.groups > 0 && args.width > 0, "there are no columns");
  check_columns(check, args, "from", args.from);
  check_columns(check, args, "to", args.to);
  const DType from = args.from.rows.dtype;
  const DType to = args.to.rows.dtype;
  check.operand("from", from);
  check.operand("to", to);
  check.that((from == DType::F64) == (to == DType::F64), "F64 goes to F64 only");
  check.that(from != DType::BF16 || to != DType::BF16, "one side holds sums, not rounded numbers");
  check.that(args.from.rows.dim(0) == args.to.rows.dim(0), "from and to differ in rows");
  check.that(args.adds() || args.groups == 1 || args.to.step >= args.width,
             "groups lie over one another");
  launch(context, from, &KernelTable::move_columns, args);
}

void head_products(const Context& context, const HeadProducts& args) {
  const OpCheck check("head_products", context);
  check.rank("x", args.x, 3);
  check.operand("x", args.x.dtype);
  const int64_t heads = args.x.dim(1);
  check.tensor("x", args.x, args.x.dtype, args.x.shape);
  check.weights("weight", args.weight, args.x.dtype, heads, args.weight.n, args.x.dim(2));
  check.tensor("out", args.out, args.x.dtype, {args.x.dim(0), heads, args.weight.n});
  launch(context, args.x.dtype, &KernelTable::head_products, args);
}

void shared_gate_forward(const Context& context, const SharedGateForward& args) {
  const OpCheck check("shared_gate_forward", context);
  check.rank("x", args.x, 2);
  check.operand("x", args.x.dtype);
  const DType scalar = scalar_type(args.x.dtype);
  check.tensor("x", args.x, args.x.dtype, args.x.shape);
  check.weights("weight", args.weight, scalar, 1, 1, args.x.dim(1));
  check.tensor("gate", args.gate, scalar, {args.x.dim(0), 1});
  launch(context, args.x.dtype, &KernelTable::shared_gate_forward, args);
}

void shared_gate_backward(const Context& context, const SharedGateBackward& args) {
  const OpCheck check("shared_gate_backward", context);
  check.rank("gate", args.gate, 2);
  const DType scalar = scalar_type(args.gate.dtype);
  check.tensor("gate", args.gate, scalar, {args.gate.dim(0), 1});
  check.tensor("d_gate", args.d_gate, scalar, {args.gate.dim(0)});
  check.tensor("d_logit", args.d_logit, scalar, args.gate.shape);
  launch(context, scalar, &KernelTable::shared_gate_backward, args);
}

}  // namespace dsmoe::kernels

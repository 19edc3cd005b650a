// Allocation at full size, and the cut to what one call needs.
#include "attention/memory.h"

#include "kernels/checks.h"

namespace dsmoe::attention {

Memory allocate_memory(const Size& size, tensor::Arena& arena, const Memory* common) {
  const auto& [shape, tokens, passes] = size;
  const DType operand = shape.kv.dtype;
  const DType scalar = kernels::scalar_type(operand);
  const bool training = passes == kernels::Passes::forward_and_backward;
  const kernels::Shape qkv{tokens, shape.qkv_width()};
  const kernels::Shape out{tokens, shape.heads, shape.kv.value_width};
  Memory memory;
  memory.tape.q = arena.tensor("attention", operand, {tokens, shape.heads, shape.kv.key_width});
  memory.tape.out = arena.tensor("attention", operand, out);
  if (training) memory.tape.log_sums = arena.tensor("attention", DType::F32, {tokens, shape.heads});
  if (common != nullptr) {
    memory.workspace = common->workspace;
    memory.gradients = common->gradients;
    return memory;
  }
  memory.workspace.qkv = arena.tensor("attention", scalar, qkv);
  if (!training) return memory;
  memory.gradients = {.d_out = arena.tensor("backward", scalar, {tokens, shape.out_width()}),
                      .d_out_rounded = arena.tensor("backward", operand, out),
                      .d_qkv = arena.tensor("backward", scalar, qkv),
                      .d_qkv_rounded = arena.tensor("backward", operand, qkv)};
  return memory;
}

Memory used_part(const Memory& memory, int64_t tokens) {
  Memory used = memory;
  auto& [tape, workspace, gradients] = used;
  for (TensorView* view : {&tape.q, &tape.out, &tape.log_sums, &workspace.qkv, &gradients.d_out,
                           &gradients.d_out_rounded, &gradients.d_qkv, &gradients.d_qkv_rounded}) {
    if (*view) *view = view->rows(0, tokens);
  }
  return used;
}

}  // namespace dsmoe::attention

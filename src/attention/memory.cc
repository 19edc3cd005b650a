// Allocation at full size, and the cut to what one call needs.
#include "attention/memory.h"

#include <algorithm>
#include <array>

#include "kernels/checks.h"

namespace dsmoe::attention {
namespace {

class Allocator {
 public:
  Allocator(const Size& size, tensor::Arena& arena)
      : size_(size),
        shape_(size.shape),
        latent_(size.shape.latent),
        operand_(size.shape.kv.dtype),
        scalar_(kernels::scalar_type(operand_)),
        training_(size.passes == kernels::Passes::forward_and_backward),
        arena_(arena) {}

  Tape tape() {
    Tape tape;
    tape.q = heads(shape_.kv.key_width);
    tape.out = heads(shape_.kv.value_width);
    if (training_) tape.log_sums = rows("attention", DType::F32, shape_.heads);
    if (shape_.has_qk_norm || latent_.q_rank > 0) tape.q_in = sums(norm_widths()[0]);
    if (shape_.has_qk_norm || latent_) tape.k_in = sums(norm_widths()[1]);
    if (latent_.q_rank > 0) tape.q_latent = rows("attention", operand_, latent_.q_rank);
    if (latent_ && !latent_.is_absorbed())
      tape.kv_latent = rows("attention", operand_, latent_.kv_rank);
    return tape;
  }

  Workspace workspace() {
    Workspace workspace;
    workspace.qkv = sums(shape_.qkv_width());
    if (shape_.has_qk_norm) workspace.normed = sums(widest_norm());
    if (!latent_) return workspace;
    workspace.projected = sums(shape_.projected_width());
    if (latent_.q_rank > 0) workspace.q_heads = sums(shape_.heads * latent_.key());
    if (!latent_.is_absorbed()) {
      workspace.kv_heads = sums(kv_heads_width());
      return workspace;
    }
    workspace.normed = sums(latent_.kv_rank);
    workspace.q_nope = heads(latent_.nope);
    workspace.q_absorbed = heads(latent_.kv_rank);
    workspace.merged = heads(latent_.value);
    return workspace;
  }

  RowGradients gradients() {
    RowGradients gradients{
        .d_out = rows("backward", scalar_, shape_.out_width()),
        .d_out_rounded = arena_.tensor("backward", operand_,
                                       {size_.max_tokens, shape_.heads, shape_.kv.value_width}),
        .d_qkv = rows("backward", scalar_, shape_.qkv_width()),
        .d_projected = rows("backward", operand_, shape_.projected_width())};
    if (!latent_ && !shape_.has_qk_norm) return gradients;
    gradients.d_turned_back = rows("backward", scalar_, shape_.qkv_width());
    gradients.d_normed = rows("backward", scalar_, widest_norm());
    gradients.d_in = rows("backward", scalar_, widest_norm());
    if (!latent_) return gradients;
    if (latent_.q_rank > 0)
      gradients.d_q_heads = rows("backward", operand_, shape_.heads * latent_.key());
    gradients.d_kv_heads = rows("backward", operand_, kv_heads_width());
    gradients.d_shared_key = rows("backward", scalar_, latent_.rope);
    return gradients;
  }

 private:
  int64_t kv_heads_width() const { return shape_.heads * (latent_.nope + latent_.value); }
  // What the norms of q and k read.
  std::array<int64_t, 2> norm_widths() const {
    if (latent_) return {latent_.q_rank, latent_.kv_rank};
    return {shape_.q_width(), shape_.k_width()};
  }
  int64_t widest_norm() const { return std::ranges::max(norm_widths()); }

  TensorView rows(const char* memory, DType dtype, int64_t width) {
    return arena_.tensor(memory, dtype, {size_.max_tokens, width});
  }
  TensorView sums(int64_t width) { return rows("attention", scalar_, width); }
  TensorView heads(int64_t width) {
    return arena_.tensor("attention", operand_, {size_.max_tokens, shape_.heads, width});
  }

  const Size& size_;
  const Shape& shape_;
  const Latent& latent_;
  DType operand_, scalar_;
  bool training_;
  tensor::Arena& arena_;
};

}  // namespace

Memory allocate_memory(const Size& size, tensor::Arena& arena, const Memory* common) {
  Allocator allocator(size, arena);
  Memory memory{.tape = allocator.tape()};
  if (common != nullptr) {
    memory.workspace = common->workspace;
    memory.gradients = common->gradients;
    return memory;
  }
  memory.workspace = allocator.workspace();
  if (size.passes == kernels::Passes::forward_and_backward)
    memory.gradients = allocator.gradients();
  return memory;
}

Memory used_part(const Memory& memory, int64_t tokens) {
  Memory used = memory;
  auto& [tape, workspace, gradients] = used;
  for (TensorView* view : {&tape.q,
                           &tape.out,
                           &tape.log_sums,
                           &tape.q_in,
                           &tape.k_in,
                           &tape.q_latent,
                           &tape.kv_latent,
                           &workspace.qkv,
                           &workspace.normed,
                           &workspace.projected,
                           &workspace.q_heads,
                           &workspace.kv_heads,
                           &workspace.q_nope,
                           &workspace.q_absorbed,
                           &workspace.merged,
                           &gradients.d_out,
                           &gradients.d_out_rounded,
                           &gradients.d_qkv,
                           &gradients.d_projected,
                           &gradients.d_turned_back,
                           &gradients.d_normed,
                           &gradients.d_in,
                           &gradients.d_q_heads,
                           &gradients.d_kv_heads,
                           &gradients.d_shared_key}) {
    if (*view) *view = view->rows(0, tokens);
  }
  return used;
}

}  // namespace dsmoe::attention

// Scratch memory of all threads, taken before it is needed.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {

void reserve_scratch(const Context& context, const ScratchBound& bound) {
  const int64_t of_experts = 6 * bound.experts;  // three doubles each, for the balance losses
  const int64_t floats = std::max({bound.tokens, 2 * bound.widest_row, of_experts,
                                   rope_scratch(bound.key_width, bound.value_width),
                                   attend_scratch(bound.key_width, bound.value_width),
                                   attention_backward_scratch(round_up(bound.context, kKeyBlock),
                                                              bound.key_width, bound.value_width),
                                   experts_backward_scratch(bound.widest_row),
                                   weight_gradient_scratch(bound.widest_row)});
  const auto task = [&](int, int) { thread_scratch(floats); };
  context.pool->run(task);
}

}  // namespace dsmoe::kernels::cpu

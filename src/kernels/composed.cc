// Each step: the fused kernel, or the ops it stands for.
#include "kernels/composed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/explain.h"
#include "kernels/checks.h"
#include "kernels/few_tokens.h"
#include "kernels/log_prob.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace dsmoe::kernels {

bool ran(std::string_view step, int64_t rows, const Attempt& attempt) {
  if (is_explaining()) {
    explain(attempt.ran()
                ? fmt::format("{} of {} rows: one launch", step, rows)
                : fmt::format("{} of {} rows: op by op, because {}", step, rows, attempt.declined));
  }
  return attempt.ran();
}

void project_heads(const Context& context, const ProjectHeads& args) {
  const int64_t tokens = args.residual.dim(0);
  const bool adapted = static_cast<bool>(args.weight.adapter);
  if (!args.keeps_x && !adapted &&
      ran("norm and projection", tokens,
          few_tokens_qkv(context, {.residual = args.residual,
                                   .norm_weight = args.norm_weight,
                                   .eps = args.eps,
                                   .weight = args.weight.stack,
                                   .bias = args.bias,
                                   .cos = args.cos,
                                   .sin = args.sin,
                                   .position = args.position,
                                   .kv_slot = args.kv_slot,
                                   .q = args.q,
                                   .kv = args.kv,
                                   .x = args.x})))
    return;
  rms_norm_forward(
      context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  if (!adapted && ran("projection and rotation", tokens,
                      qkv_forward(context, {.x = args.x,
                                            .weight = args.weight.stack,
                                            .bias = args.bias,
                                            .cos = args.cos,
                                            .sin = args.sin,
                                            .position = args.position,
                                            .kv_slot = args.kv_slot,
                                            .q = args.q,
                                            .kv = args.kv})))
    return;
  matmul_forward(context, {.operand = args.operand,
                           .x = args.x,
                           .weight = args.weight,
                           .bias = args.bias,
                           .out = args.qkv});
  rope_forward(context, {.qkv = args.qkv,
                         .cos = args.cos,
                         .sin = args.sin,
                         .position = args.position,
                         .kv_slot = args.kv_slot,
                         .q = args.q,
                         .kv = args.kv});
}

Rows dispatch(const Context& context, const DispatchRows& args) {
  const Attempt attempt = dispatch_rows(context, args);
  if (is_explaining()) {
    explain(attempt.ran() ? fmt::format("dispatch of {} rows: laid out", args.rows.count())
                          : fmt::format("dispatch of {} rows: gathered by each product, because {}",
                                        args.rows.count(), attempt.declined));
  }
  return attempt.ran() ? Rows{args.out} : args.rows;
}

namespace {

// Gate and up products. Laying out pays where a row makes more values than it has.
void experts_up(const Context& context, const ExpertsPart& args) {
  std::array<ExpertFamily, 2> families;
  DSMOE_CHECK(args.families.size() <= families.size(), "{} families of experts, at most {}",
              args.families.size(), families.size());
  std::ranges::copy(args.families, families.begin());
  for (ExpertFamily& family : families) {
    const bool pays = family.x.index && 2 * family.gate.stack.n > family.gate.stack.k;
    if (!pays || !args.x_rows) continue;
    family.x = dispatch(context, {.rows = family.x,
                                  .offsets = family.offsets,
                                  .row_of_slot = args.row_of_slot,
                                  .out = args.x_rows});
  }
  experts_up_forward(
      context, {.operand = args.operand, .families = {families.data(), args.families.size()}});
}

}  // namespace

void experts_part(const Context& context, const ExpertsPart& args) {
  if (args.columns.is_whole()) {
    const int64_t rows = args.families.empty() ? 0 : args.families[0].activation.dim(0);
    if (ran("experts", rows,
            experts_forward(context, {.operand = args.operand, .families = args.families})))
      return;
  }
  if (args.columns.begin == 0) experts_up(context, args);
  experts_down_forward(
      context, {.operand = args.operand, .families = args.families, .columns = args.columns});
}

void input_gradient(const Context& context, const CombineBackward& args) {
  if (!args.d_logits) return combine_forward(context, args.combine);
  const TensorView& d_x = args.combine.residual;
  if (ran("input gradient", d_x.dim(0), combine_backward(context, args))) return;
  combine_forward(context, args.combine);
  matmul_forward(context, {.operand = args.d_logits.dtype,
                           .x = args.d_logits,
                           .weight = args.centroids,
                           .out = d_x,
                           .store = Store::accumulate});
}

void most_likely(const Context& context, const MostLikely& args) {
  if (!args.weight.adapter && ran("head", args.x.dim(0),
                                  few_tokens_head(context, {.x = args.x,
                                                            .weight = args.weight.stack,
                                                            .logits = args.logits,
                                                            .index = args.index})))
    return;
  matmul_forward(context,
                 {.operand = args.x.dtype, .x = args.x, .weight = args.weight, .out = args.logits});
  argmax_forward(context, {.logits = args.logits, .index = args.index});
}

}  // namespace dsmoe::kernels

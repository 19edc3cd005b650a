// The implementation table: one function per op and tier, chosen once at start, printable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/beside.h"
#include "kernels/context.h"
#include "kernels/layout.h"
#include "kernels/memory.h"
#include "kernels/recording.h"
#include "tensor/arena.h"

namespace dsmoe::kernels {

// The arguments of the ops. Only named here: who calls an op includes its header, who implements
// them all includes kernels/ops.h.
struct PackWeight;
struct EmbeddingForward;
struct RmsNormForward;
struct MatmulForward;
struct RopeForward;
struct QkvForward;
struct AttentionForward;
struct RouterForward;
struct PlanBuild;
struct ExpertsUpForward;
struct ExpertsDownForward;
struct ExpertsForward;
struct CombineForward;
struct LogProbForward;
struct ArgmaxForward;
struct SampleForward;
struct FewTokensQkv;
struct FewTokensFfn;
struct FewTokensHead;
struct DispatchGates;
struct DispatchRows;
struct CombineBackward;
struct TakesParts;
struct WeightGradient;
struct BiasGradient;
struct RoundValues;
struct ExpertsDownBackward;
struct ExpertsUpBackward;
struct RouterBackward;
struct RmsNormBackward;
struct RopeBackward;
struct AttentionBackward;
struct EmbeddingBackward;
struct CrossEntropyBackward;
struct BalanceLoss;
struct RouterZLoss;
struct SumOfSquares;
struct AdamwStep;
struct OptimizerStep;

// A tier fills what it implements over a copy of the table below it (amx over v4 over ref), so a
// slot is never empty unless it says so. Callers use the checked functions of the op headers, which
// call through the table of their context.
struct KernelTable {
  std::string_view name;  // "ref", "v3", "v4", "v4_bf16", "amx", "cuda"
  Device device = Device::cpu;
  WeightLayout weight_layout = WeightLayout::panels;
  // Input gradients read the weights themselves as transpose_of says. Others read transposed copies
  // in weight_layout.
  bool takes_transposes = false;
  // Ops write the copies that callers ask for (`rounded`) and add to what lies elsewhere (`base`)
  // in their own pass. Others leave it to the checked functions, which call round_values and
  // rope_backward.
  bool copies_in_pass = false;
  tensor::Arena::Allocator allocator;  // of the device's memory
  MemoryOps memory;
  RecordingOps recording;
  BesideOps beside;

  void (*pack_weight)(const Context&, const PackWeight&) = nullptr;
  void (*embedding_forward)(const Context&, const EmbeddingForward&) = nullptr;
  void (*rms_norm_forward)(const Context&, const RmsNormForward&) = nullptr;
  void (*matmul_forward)(const Context&, const MatmulForward&) = nullptr;
  void (*rope_forward)(const Context&, const RopeForward&) = nullptr;
  void (*attention_forward)(const Context&, const AttentionForward&) = nullptr;
  void (*router_forward)(const Context&, const RouterForward&) = nullptr;
  void (*plan_build)(const Context&, const PlanBuild&) = nullptr;
  void (*experts_up_forward)(const Context&, const ExpertsUpForward&) = nullptr;
  void (*experts_down_forward)(const Context&, const ExpertsDownForward&) = nullptr;
  void (*combine_forward)(const Context&, const CombineForward&) = nullptr;
  void (*log_prob_forward)(const Context&, const LogProbForward&) = nullptr;
  void (*argmax_forward)(const Context&, const ArgmaxForward&) = nullptr;
  void (*sample_forward)(const Context&, const SampleForward&) = nullptr;
  // Absent where launches cost nothing.
  bool (*few_tokens_qkv)(const Context&, const FewTokensQkv&) = nullptr;
  bool (*few_tokens_ffn)(const Context&, const FewTokensFfn&) = nullptr;
  bool (*few_tokens_head)(const Context&, const FewTokensHead&) = nullptr;
  bool (*experts_forward)(const Context&, const ExpertsForward&) = nullptr;
  bool (*qkv_forward)(const Context&, const QkvForward&) = nullptr;

  void (*dispatch_gates)(const Context&, const DispatchGates&) = nullptr;
  bool (*dispatch_rows)(const Context&, const DispatchRows&) = nullptr;        // or absent
  bool (*combine_backward)(const Context&, const CombineBackward&) = nullptr;  // or absent
  bool (*takes_parts)(const Context&, const TakesParts&) = nullptr;            // or absent: never
  void (*weight_gradient)(const Context&, const WeightGradient&) = nullptr;
  void (*bias_gradient)(const Context&, const BiasGradient&) = nullptr;
  void (*round_values)(const Context&, const RoundValues&) = nullptr;
  void (*experts_down_backward)(const Context&, const ExpertsDownBackward&) = nullptr;
  void (*experts_up_backward)(const Context&, const ExpertsUpBackward&) = nullptr;
  void (*router_backward)(const Context&, const RouterBackward&) = nullptr;
  void (*rms_norm_backward)(const Context&, const RmsNormBackward&) = nullptr;
  void (*rope_backward)(const Context&, const RopeBackward&) = nullptr;
  void (*attention_backward)(const Context&, const AttentionBackward&) = nullptr;
  void (*embedding_backward)(const Context&, const EmbeddingBackward&) = nullptr;
  void (*cross_entropy_backward)(const Context&, const CrossEntropyBackward&) = nullptr;
  void (*balance_loss)(const Context&, const BalanceLoss&) = nullptr;
  void (*router_z_loss)(const Context&, const RouterZLoss&) = nullptr;
  void (*sum_of_squares)(const Context&, const SumOfSquares&) = nullptr;
  void (*adamw_step)(const Context&, const AdamwStep&) = nullptr;

  // Empty where gradients are made, and tensors stepped, one by one.
  void (*weight_gradients)(const Context&, const std::span<const WeightGradient>&) = nullptr;
  void (*gradient_square_sums)(const Context&, const OptimizerStep&) = nullptr;
  void (*optimizer_step)(const Context&, const OptimizerStep&) = nullptr;
};

// The specification: ref<float> for BF16 and F32, ref<double> for F64.
const KernelTable& ref_table();

// One line of `dsmoe info`: a tier this program knows, and why it was passed over (empty when it
// can run here).
struct Candidate {
  const KernelTable* table;  // nullptr: not built in
  std::string_view name;
  std::string declined;
};

// CPU tiers, best first, "ref" last.
std::vector<Candidate> cpu_candidates();

// The first candidate that can run, or the one DSMOE_ISA names; an unknown or impossible name is an
// Error(usage).
const KernelTable& select_cpu_table();

}  // namespace dsmoe::kernels

// Attention's backward pass: which kernels do it.
#include "kernels/cuda/attention/backward_attention.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

// The choice depends on head_dim and type alone. Returns whether the gradients are rotated back.
bool launch_kernels(const Context& context, const AttentionBackward& args, bool on_hopper,
                    AttentionBackwardParameters p) {
  const int64_t tokens = args.q.dim(0);
  if (args.q.dtype != DType::BF16 || p.head_dim % 8 != 0 || p.head_dim > 128) {
    p.statistics = static_cast<float4*>(
        scratch_of(context, static_cast<std::size_t>(tokens * p.heads) * sizeof(float4)));
    attention_backward_plain(context, args.q.dtype, p, tokens);
    return false;
  }
  DSMOE_CHECK(args.log_sums, "attention backward on CUDA: the forward pass's log_sums are missing");
  p.log_sums = args.log_sums.as<float>();
  p.tile_statistics = static_cast<float2*>(
      scratch_of(context, static_cast<std::size_t>(p.pages) * p.heads * 64 * sizeof(float2)));
  if (!on_hopper) {
    attention_backward_tiles(context, p, tokens);
    return false;
  }
  if (args.rounded && rotates_back(p.head_dim)) {
    p.rounded = args.rounded.data;
    p.cos = args.cos.as<float>();
    p.sin = args.sin.as<float>();
  }
  attention_backward_hopper(context, p, tokens);
  return p.rounded != nullptr;
}

void run(const Context& context, const AttentionBackward& args, bool on_hopper) {
  if (args.q.dim(0) == 0) return;
  DSMOE_CHECK(args.kv.shape.layout == WeightLayout::row_major,
              "attention on CUDA: KV pages must be row-major");
  const AttentionBackwardParameters p{.q = args.q.data,
                                      .keys = args.kv.keys,
                                      .values = args.kv.values,
                                      .q_starts = args.q_starts.as<int32_t>(),
                                      .page_table = args.page_table.as<int32_t>(),
                                      .out = args.out.data,
                                      .d_out = args.d_out.data,
                                      .d_qkv = args.d_qkv.as<float>(),
                                      .scale = args.scale,
                                      .sequences = static_cast<int32_t>(args.page_table.dim(0)),
                                      .pages = static_cast<int32_t>(args.kv.num_pages),
                                      .max_pages = static_cast<int32_t>(args.page_table.dim(1)),
                                      .heads = static_cast<int32_t>(args.q.dim(1)),
                                      .kv_heads = static_cast<int32_t>(args.kv.shape.heads),
                                      .head_dim = static_cast<int32_t>(args.q.dim(2))};
  if (!launch_kernels(context, args, on_hopper, p) && args.rounded)
    cuda::rope_backward(context, rotation_back(args));
}

}  // namespace

void attention_backward(const Context& context, const AttentionBackward& args) {
  run(context, args, is_hopper());
}
void attention_backward_portable(const Context& context, const AttentionBackward& args) {
  run(context, args, false);
}

}  // namespace dsmoe::kernels::cuda

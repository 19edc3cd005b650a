// The CUDA implementation of every op of the table.
#pragma once

#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cuda {

#define DSMOE_DECLARE(name, Arguments) void name(const Context&, const Arguments&);
DSMOE_OPS(DSMOE_DECLARE)
DSMOE_OPS_OF_MANY(DSMOE_DECLARE)
#undef DSMOE_DECLARE
#define DSMOE_DECLARE(name, Arguments) Attempt name(const Context&, const Arguments&);
DSMOE_FUSED_OPS(DSMOE_DECLARE)
#undef DSMOE_DECLARE

bool takes_parts(const Context&, const TakesParts&);
// False: too many rows, or a shape for the grouped product.
bool few_rows_matmul(const Context&, const MatmulForward&);

void upload(const Context&, const void* host, void* device, std::size_t bytes);
void download(const Context&, const void* device, void* host, std::size_t bytes);

void begin_recording(const Context&);
void* end_recording(const Context&);
void replay_recording(const Context&, void* recording);
void release_recording(void* recording);

void* begin_beside(const Context&);
BesideWork end_beside(const Context&);
void wait_beside(const Context&, BesideWork);

// The end of experts_down_backward: d_gate_of_row from its sums over 16 outputs each.
void add_partial_sums(const Context& context, const ExpertFamilyBackward& family,
                      const float* partial_sums);

// The device memory in which the kernels of a stream count: made with the stream, because nothing
// can be allocated while a graph is captured.
void prepare_router(const Context& context);
void prepare_products(const Context& context);
void prepare_experts(const Context& context);
void prepare_few_tokens_ffn(const Context& context);
void prepare_few_tokens_head(const Context& context);

}  // namespace dsmoe::kernels::cuda

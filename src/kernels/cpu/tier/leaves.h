// The functions of one tier, declared in its namespace.
#pragma once

#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::DSMOE_TIER {

void product(const cpu::ProductBlock& args);
void attend(const cpu::AttendBlock& args);
void rms_norm(const cpu::RmsNormRows& args);
void rotate(const cpu::RotateHead& args);
void combine(const cpu::CombineRow& args);
void pack(const cpu::PackPanel& args);
void pack_columns(const cpu::PackColumns& args);
void pack_groups(const cpu::PackGroups& args);  // with AVX-512 only
void widen(const void* bf16, float* out, int64_t size);
void round(const float* x, void* bf16, int64_t size);
void softmax(float* s, int64_t size);
void sigmoid(float* s, int64_t size);
cpu::MaxAndSum max_and_sum(const float* s, int64_t size);
int64_t index_of_max(const float* s, int64_t size);
void gather_panels(const cpu::GatherRows& args);
void gather_transposed(const cpu::GatherRows& args);
void swiglu_backward(const cpu::SwigluBackwardRow& args);
void rms_norm_backward(const cpu::RmsNormBackwardRows& args);
void rms_norm_weight(const cpu::RmsNormBackwardRows& args);
void attend_backward(const cpu::AttendBackwardRow& args);
void cross_entropy(const cpu::CrossEntropyRow& args);
void adamw(const cpu::AdamwRange& args);
double sum_of_squares(const float* x, int64_t size);

}  // namespace dsmoe::kernels::DSMOE_TIER

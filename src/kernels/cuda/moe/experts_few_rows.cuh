// Gate and up, SwiGLU, and down of all experts in one launch, for few rows per expert.
#pragma once

#include "kernels/cuda/product/product.h"

namespace dsmoe::kernels::cuda {

struct ExpertsParameters {
  ProductParameters up;
  ProductParameters down;  // the same families
  unsigned*
      done;  // [experts of both families]: parts of up that are written; zero before and after
};

void launch_experts_few_rows(const Context& context, ExpertsParameters& parameters);

}  // namespace dsmoe::kernels::cuda

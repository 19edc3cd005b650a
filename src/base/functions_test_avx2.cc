// exp, sigmoid, silu over AVX2 lanes; includes nothing that could leave AVX2 code in shared inline
// functions.
#include "base/functions_test_lanes.h"
#include "base/lanes_x86.h"

namespace dsmoe::functions_test {

void apply_avx2(Function function, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256 result = function == Function::exp       ? exp_lanes<Avx2Lanes>(v)
                          : function == Function::sigmoid ? sigmoid_lanes<Avx2Lanes>(v)
                                                          : silu_lanes<Avx2Lanes>(v);
    _mm256_storeu_ps(y + i, result);
  }
}

}  // namespace dsmoe::functions_test

// exp, sigmoid, silu over AVX-512 lanes, and the scalar sequence under the same flags.
#include "base/functions_test_lanes.h"
#include "base/lanes_x86.h"

namespace dsmoe::functions_test {

void apply_avx512(Function function, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 result = function == Function::exp       ? exp_lanes<Avx512Lanes>(v)
                          : function == Function::sigmoid ? sigmoid_lanes<Avx512Lanes>(v)
                                                          : silu_lanes<Avx512Lanes>(v);
    _mm512_storeu_ps(y + i, result);
  }
}

void apply_scalar_avx512(Function function, const float* x, float* y, size_t n) {
  switch (function) {
    case Function::exp:
      for (size_t i = 0; i < n; ++i) y[i] = exp_f32(x[i]);
      return;
    case Function::sigmoid:
      for (size_t i = 0; i < n; ++i) y[i] = sigmoid_f32(x[i]);
      return;
    case Function::silu:
      for (size_t i = 0; i < n; ++i) y[i] = silu_f32(x[i]);
      return;
  }
}

}  // namespace dsmoe::functions_test

// Doors from functions_test.cc into files compiled for other instruction sets.
#pragma once

#include <cstddef>

namespace dsmoe::functions_test {

enum class Function { exp, sigmoid, silu };

// n is a multiple of 16.
void apply_avx2(Function function, const float* x, float* y, size_t n);
void apply_avx512(Function function, const float* x, float* y, size_t n);
// The scalar sequence, compiled where the compiler may vectorise it with AVX-512.
void apply_scalar_avx512(Function function, const float* x, float* y, size_t n);

}  // namespace dsmoe::functions_test

// FlushDenormals: denormal floats are zero, as input and as result, while the guard lives.
#pragma once

#include <immintrin.h>

namespace dsmoe {

// docs/numerics.md fixes every CPU result with FTZ and DAZ set. The pool sets them for run(); code
// that does arithmetic outside the pool holds one of these. Affects the current thread only; nests.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 1u << 15;
  static constexpr unsigned kDenormalsAreZero = 1u << 6;
  unsigned saved_;
};

}  // namespace dsmoe

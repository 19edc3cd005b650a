// Rows as an op reads them: chosen by index, or as they lie.
#pragma once

#include "kernels/layout.h"

namespace dsmoe::kernels {

struct Rows {
  TensorView x;      // [tokens, columns]
  TensorView index;  // [rows] I32: row r is x[index[r]]; absent: rows lie in order, row r is x[r]

  int64_t count() const { return (index ? index : x).dim(0); }
  int64_t columns() const { return x.dim(1); }
  // Null for rows that lie in order.
  const int32_t* indices() const { return index ? index.as<int32_t>() : nullptr; }
};

}  // namespace dsmoe::kernels

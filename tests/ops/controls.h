// Negative controls: kernel tables that break one rule of docs/numerics.md each. Linked into tests
// only.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace dsmoe::ops {

enum class FoundBy { parity, threads, batch };

struct BrokenRule {
  std::string name;
  std::string op;
  kernels::DType operand;
  FoundBy found_by;
  kernels::KernelTable table;
};

std::vector<BrokenRule> broken_rules();

}  // namespace dsmoe::ops

// Which rank keeps which part of the masters and moments, and updates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/rank_layout.h"

namespace dsmoe::train {

struct SlicedTensor {
  int64_t size = 0;
  int64_t expert_rank = -1;  // whose routed expert it is of; below 0: every rank has it
};

// Elements [begin, end) of a tensor: whole parts of the norm (kernels/optimizer.h).
struct Slice {
  std::size_t tensor = 0;
  int64_t begin = 0, end = 0;
  int64_t rank = 0;

  int64_t size() const { return end - begin; }
};

// Ascending by tensor and begin. The ranks that have a tensor keep about the same each.
std::vector<Slice> cut_slices(std::span<const SlicedTensor> tensors, const RankLayout& layout);

// Whether a rank has the tensor, and so makes a gradient of it and takes its new values.
inline bool has_tensor(const RankLayout& layout, int64_t rank, const SlicedTensor& tensor) {
  return tensor.expert_rank < 0 || layout.expert_rank_of(rank) == tensor.expert_rank;
}

}  // namespace dsmoe::train

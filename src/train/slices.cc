// Each family of tensors, dense ones and those of each expert rank, is one long row of norm parts,
// cut among the ranks that have it.
#include "train/slices.h"

#include <algorithm>

#include "kernels/optimizer.h"

namespace dsmoe::train {
namespace {

void cut_family(std::span<const SlicedTensor> tensors, const RankLayout& layout,
                int64_t expert_rank, std::vector<Slice>& slices) {
  int64_t total = 0;
  for (const SlicedTensor& tensor : tensors)
    if (tensor.expert_rank == expert_rank) total += tensor.size;
  const int64_t first = expert_rank < 0 ? 0 : expert_rank * layout.replicas();
  const int64_t members = expert_rank < 0 ? layout.ranks : layout.replicas();
  int64_t before = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].expert_rank != expert_rank) continue;
    const int64_t size = tensors[i].size, part = kernels::square_part_size(size);
    for (int64_t begin = 0; begin < size; begin += part) {
      // In double: elements times ranks may be more than 2^63.
      const double place = static_cast<double>(before + begin) / static_cast<double>(total);
      const auto member = static_cast<int64_t>(place * static_cast<double>(members));
      const int64_t rank = first + std::min(member, members - 1);
      const int64_t end = std::min(begin + part, size);
      if (begin > 0 && slices.back().rank == rank) {
        slices.back().end = end;
      } else {
        slices.push_back({.tensor = i, .begin = begin, .end = end, .rank = rank});
      }
    }
    before += size;
  }
}

}  // namespace

std::vector<Slice> cut_slices(std::span<const SlicedTensor> tensors, const RankLayout& layout) {
  std::vector<Slice> slices;
  cut_family(tensors, layout, -1, slices);
  for (int64_t e = 0; e < layout.expert_ranks; ++e) cut_family(tensors, layout, e, slices);
  std::ranges::stable_sort(slices, {}, &Slice::tensor);
  return slices;
}

}  // namespace dsmoe::train

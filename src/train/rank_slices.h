// Gradients on their way to the ranks that keep the masters, and new values on their way back. Sums
// are done by the receiver, in the order of docs/numerics.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "model/gradients.h"
#include "model/parameters.h"
#include "train/slices.h"

namespace dsmoe::train {

class RankSlices {
 public:
  // One trained tensor, also of another rank's experts. Lists are empty where this rank has it not.
  struct Tensor {
    std::string name;
    SlicedTensor sliced;
    tensor::DType stored = tensor::DType::F32;
    std::vector<model::NamedGradient> shards;  // by buffer
    std::vector<const model::Placement*> placements;
    bool has() const { return !shards.empty(); }
  };
  // All tensors of the model by name, the same on all ranks but for what they have.
  RankSlices(const kernels::Context& context, comm::Group& group, const RankLayout& layout,
             std::vector<Tensor> tensors);

  std::span<const Tensor> tensors() const { return tensors_; }
  std::span<const Slice> all() const { return slices_; }
  std::span<const std::size_t> own() const { return slices_of_[own_rank()]; }  // indices of all()
  comm::Group& group() const { return group_; }

  // sums[i] becomes the gradient of the i-th own slice: the shards of all ranks, ascending. Uses up
  // the gradients: a tied embedding's head joins them.
  void reduce(std::span<const tensor::TensorView> sums);
  // The norm of all tensors, from what reduce() left.
  double norm(std::span<const tensor::TensorView> sums);
  // values[i]: new values of the i-th own slice in the stored type. They go to every rank that has
  // the tensor, and into its model. Leaves gradients as an optimiser does (NamedGradient).
  void hand_out(std::span<const tensor::TensorView> values);

 private:
  // A piece of a slice that travels with others.
  struct Piece {
    std::size_t tensor;
    std::size_t own;  // its place in own(), for this rank's
    int64_t slice_begin, begin, end;
  };
  std::size_t own_rank() const { return static_cast<std::size_t>(layout_.rank); }
  std::size_t num_ranks() const { return slices_of_.size(); }
  bool has(std::size_t rank, const Tensor& tensor) const;
  std::size_t num_buffers(const Tensor& tensor) const;
  template <class F>
  void for_pieces(std::size_t rank, int64_t chunk, F&& f) const;
  void join_tied();
  void add_up(const Piece& piece, const tensor::TensorView& sum, std::span<const float*> at) const;

  kernels::Context context_;
  comm::Group& group_;
  RankLayout layout_;
  std::vector<Tensor> tensors_;
  std::vector<Slice> slices_;
  std::vector<std::vector<std::size_t>> slices_of_;     // by rank
  int64_t chunk_elements_ = 0;                          // of a slice, that travel at once
  int64_t num_chunks_ = 0;                              // of the rank that has most
  std::vector<std::vector<std::byte>> outbox_, inbox_;  // by rank
};

}  // namespace dsmoe::train

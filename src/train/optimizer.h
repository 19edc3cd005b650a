// AdamW over named tensors: fp32 masters and moments, clipping by the global norm, and the way back
// into the model's packed weights.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "model/gradients.h"
#include "model/language_model.h"
#include "train/gradient_sets.h"
#include "train/rank_slices.h"

namespace dsmoe::train {

using kernels::Context;
using model::ParameterSource;
using tensor::DType;
using tensor::TensorView;

struct OptimizerRule {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // on matrices; never on norms and biases
  double clip = 1.0;          // largest global norm; 0: no clipping
  double bias_rate = 0.001;   // step of e_score_correction_bias
};

// One trained tensor and what the optimiser keeps of it. A selection bias has no moments: it moves
// by the sign of its load. Where ranks share the update, each keeps slices of tensors, as vectors.
struct TrainedTensor {
  std::string name;
  tensor::Shape shape;       // of the whole tensor
  int64_t begin = 0;         // the element of it that is the first here
  TensorView master;         // F32 (F64), row-major
  TensorView first_moment;   // same shape, or absent
  TensorView second_moment;  // same shape, or absent
};

class Optimizer {
 public:
  // The ranks that share the update; without a group there is one. With one, gradients are sums
  // over the shards of all ranks, and each rank updates its slices (train/rank_slices.h).
  struct Sharing {
    comm::Group* group = nullptr;
    RankLayout layout;
  };
  // Trains what `gradients` names, and the selection biases that `trains` accepts. Masters are the
  // tensors of `initial`, which the model was made from. All references must outlive it.
  Optimizer(const Context& context, const model::Model& model, const GradientSets& gradients,
            FunctionRef<bool(const std::string& name)> trains, ParameterSource& initial,
            const OptimizerRule& rule, const Sharing& sharing);

  // One update; the gradients are used up: left zero, or to be assigned next
  // (NamedGradient::is_assigned). Returns their global norm before clipping: sums of squares per
  // tensor, added in double in the order of names. Throws Error(input) when it is not finite, with
  // weights and moments as they were.
  double step(double lr);

  // bias += rate * sign(mean load - load): integer counts of the whole step, [MoE layer][expert].
  void update_selection_bias(std::span<const std::vector<int64_t>> load);

  // Masters and moments, sorted by name; where ranks share the update, this rank's.
  std::span<const TrainedTensor> tensors() const { return tensors_; }
  // Absent where the update is not shared.
  const RankSlices* ranks() const { return ranks_.get(); }
  DType scalar() const { return model_.operand == DType::F64 ? DType::F64 : DType::F32; }
  int64_t steps_done() const { return steps_done_; }

  // The idx-th of tensors() as a checkpoint holds it, in host memory; valid until the next call.
  TensorView stored(std::size_t idx);

  // After masters and moments were written from outside (a checkpoint): puts all masters into the
  // model.
  void resume_after(int64_t steps_done);

  const Context& context() const { return context_; }
  const tensor::Arena& arena() const { return arena_; }

 private:
  using Placements = std::vector<const model::Placement*>;
  struct Place {
    Placements placements;          // two for a tied embedding
    model::NamedGradient gradient;  // without a view for a selection bias
    DType stored = DType::F32;      // in checkpoints, and so what the forward pass may see
    float weight_decay = 0;
    int64_t moe_layer_idx = 0;  // of a selection bias
    TensorView values;          // of a slice, rounded where that is wanted: what other ranks get
  };
  // Elements [begin, end) of a tensor: all, or a slice, whose gradient is then a vector.
  struct Range {
    int64_t begin = 0, end = 0;
    bool is_slice = false;
  };
  void add_tensor(const model::NamedGradient& gradient, const Placements& placements,
                  ParameterSource& initial, const Range& range);
  void share(const GradientSets& gradients, std::span<const Placements> placements,
             FunctionRef<bool(const std::string& name)> trains, const Sharing& sharing);
  // Rows of a tensor that a thread takes from gradients to the model's weights, small enough to
  // stay in its caches on the way.
  struct Piece {
    std::size_t tensor;
    int64_t begin, end;
  };
  double gradient_norm();
  void sum_squares();
  void cut_into_pieces();
  void step_pieces(const kernels::AdamwStep& rule);
  void describe_for_device();
  bool is_rounded(std::size_t idx) const {  // or stored as its master is
    return places_[idx].stored != tensors_[idx].master.dtype;
  }
  // Rows of the idx-th tensor from row_begin on.
  void place(std::size_t idx, const TensorView& values, int64_t row_begin) const;

  Context context_;
  const model::Model& model_;
  OptimizerRule rule_;
  tensor::Arena arena_;
  std::vector<TrainedTensor> tensors_;
  std::vector<Place> places_;  // beside tensors_
  TensorView square_sums_;     // F64, one per tensor that has a gradient
  std::unique_ptr<RankSlices> ranks_;
  std::vector<TensorView> slice_sums_;    // gradients of the own slices
  std::vector<TensorView> slice_values_;  // what is handed out of them
  kernels::OptimizerStep all_;            // where the table steps all tensors at once; else empty
  // Elsewhere:
  std::vector<kernels::SumOfSquares> sums_;
  std::vector<Piece> pieces_;
  TensorView rounded_pieces_;  // [threads, bytes]
  std::vector<double> host_sums_;
  // One tensor on its way out of the arena: rounded, and before that downloaded from a device.
  std::vector<std::byte> rounded_, downloaded_;
  int64_t steps_done_ = 0;
};

}  // namespace dsmoe::train

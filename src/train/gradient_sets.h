// Buffers for the gradients of every shard that a rank makes.
#pragma once

#include <vector>

#include "model/gradients.h"
#include "model/language_model.h"
#include "train/rank_layout.h"

namespace dsmoe::train {

class GradientSets {
 public:
  GradientSets(const kernels::Context& context, const model::Model& model, const RankLayout& layout,
               FunctionRef<bool(const std::string& name)> trains, tensor::Arena& arena);

  // Those that a block of units goes to.
  const model::Gradients& of_block(int64_t block) const;
  // The routed experts' of the unit that each of several expert ranks brings; empty where all go
  // to one buffer. Holds until the next call.
  std::span<const model::Gradients* const> of_units(int64_t block);

  // The first buffer of each tensor, by name; and all of the idx-th of these.
  const model::GradientBuffers& first() const { return first_; }
  std::vector<model::NamedGradient> shards_of(std::size_t idx) const;

 private:
  RankLayout layout_;
  std::vector<model::GradientBuffers> dense_, routed_;
  model::GradientBuffers first_;
  std::vector<model::Gradients> views_;  // [dense buffer][expert buffer]
  std::vector<const model::Gradients*> of_units_;
};

}  // namespace dsmoe::train

// Which routers could not choose: a flag per MoE layer on the device, read with what is downloaded
// anyway, so that no layer is waited for.
#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "kernels/context.h"
#include "model/config.h"
#include "tensor/arena.h"

namespace dsmoe::model {

// A token whose scores are NaN or infinite in a layer's router.
struct BadToken {
  int64_t layer = 0;
  int64_t token = 0;
};

// What every device says of it. `segment`: the one of the pass that holds the token.
class BadScores : public Error {
 public:
  explicit BadScores(const BadToken& bad, std::size_t segment = 0);
  std::size_t segment() const { return segment_; }

 private:
  std::size_t segment_;
};

class RouterFlags {
 public:
  // `room`: numbers that lie behind the flags, for results that are read together with them.
  RouterFlags(const kernels::Context& context, const ModelConfig& config, int64_t room,
              tensor::Arena& arena);

  // [1] I32: where the router of a layer says what it met (kernels/router.h, bad_token).
  tensor::TensorView of(int64_t moe_layer) const { return memory_.rows(moe_layer, moe_layer + 1); }
  // [room] I32
  tensor::TensorView room() const { return memory_.rows(num_flags(), memory_.dim(0)); }

  // Brings `source` (or nothing, where it is absent) and the flags to the host; of the room in one
  // download, else in two. Returns the lowest bad token of the first layer that has one, and then
  // forgets them all.
  std::optional<BadToken> read(const kernels::Context& context, const tensor::TensorView& source,
                               void* host);
  void forget(const kernels::Context& context);

 private:
  int64_t num_flags() const { return static_cast<int64_t>(layers_.size()); }

  std::vector<int64_t> layers_;  // by MoE layer
  tensor::TensorView memory_;    // I32: a flag per MoE layer (-1: all is well), then the room
  std::vector<int32_t> host_;    // the same; a member, as a step of training allocates nothing
};

}  // namespace dsmoe::model

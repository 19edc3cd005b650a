// Flags of all layers, and what lies behind them.
#include "model/router_flags.h"

#include <algorithm>
#include <cstring>

#include "kernels/memory.h"

namespace dsmoe::model {

using tensor::TensorView;

BadScores::BadScores(const BadToken& bad, std::size_t segment)
    : Error(ErrorKind::input,
            fmt::format("layer {}: the router's scores of token {} are not finite; the weights or "
                        "the activations are broken (NaN or infinity)",
                        bad.layer, bad.token)),
      segment_(segment) {}

RouterFlags::RouterFlags(const kernels::Context& context, const ModelConfig& config, int64_t room,
                         tensor::Arena& arena) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer(layer)) layers_.push_back(layer);
  }
  memory_ = arena.tensor("router", tensor::DType::I32, {num_flags() + room});
  host_.resize(static_cast<std::size_t>(memory_.dim(0)));
  forget(context);
}

void RouterFlags::forget(const kernels::Context& context) {
  if (layers_.empty()) return;
  std::fill_n(host_.begin(), layers_.size(), -1);
  kernels::upload(context, host_.data(), memory_.rows(0, num_flags()));
}

std::optional<BadToken> RouterFlags::read(const kernels::Context& context, const TensorView& source,
                                          void* host) {
  const auto* const begin = static_cast<const std::byte*>(memory_.data);
  const auto* const data = static_cast<const std::byte*>(source.data);
  const bool in_room = source && begin <= data && data < begin + memory_.num_bytes();
  if (source && !in_room) kernels::download(context, source, host);
  // A model without routers has no flags to read.
  const auto num_bytes =
      in_room ? static_cast<std::size_t>(data - begin) + source.num_bytes() : layers_.size() * 4;
  if (num_bytes > 0)
    kernels::download(context, memory_.rows(0, static_cast<int64_t>(num_bytes / 4)), host_.data());
  if (in_room) {
    std::memcpy(host, reinterpret_cast<const std::byte*>(host_.data()) + (data - begin),
                source.num_bytes());
  }
  const auto end = host_.begin() + num_flags();
  const auto bad = std::find_if(host_.begin(), end, [](int32_t token) { return token >= 0; });
  if (bad == end) return std::nullopt;
  const BadToken found{.layer = layers_[static_cast<std::size_t>(bad - host_.begin())],
                       .token = *bad};
  forget(context);
  return found;
}

}  // namespace dsmoe::model

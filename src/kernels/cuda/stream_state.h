// What the host keeps for a stream from one op to the next.
#pragma once

#include <memory>

#include "kernels/context.h"

namespace dsmoe::kernels::cuda {

// Where a stream's state of one kind lies; empty until someone makes it.
std::shared_ptr<void>& state_slot(void* stream, const void* kind);

// The State of the context's stream, made when first asked for. A stream belongs to one thread at a
// time, so its states do.
template <class State>
State& state_of(const Context& context) {
  static char kind;  // its address
  std::shared_ptr<void>& slot = state_slot(context.stream, &kind);
  if (!slot) slot = std::make_shared<State>();
  return *static_cast<State*>(slot.get());
}

// Destroys all states of a stream whose work is done.
void release_states(void* stream);

}  // namespace dsmoe::kernels::cuda

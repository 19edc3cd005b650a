// The states of all streams.
#include "kernels/cuda/stream_state.h"

#include <map>
#include <mutex>
#include <utility>

namespace dsmoe::kernels::cuda {
namespace {

using StatesOfStream = std::map<const void*, std::shared_ptr<void>>;  // by kind

std::mutex mutex;
// Never destroyed: at the end of the process the device may be gone before what is left here.
std::map<void*, StatesOfStream>& all_states() {
  static auto& map = *new std::map<void*, StatesOfStream>;
  return map;
}

}  // namespace

std::shared_ptr<void>& state_slot(void* stream, const void* kind) {
  const std::lock_guard lock(mutex);
  return all_states()[stream][kind];
}

void release_states(void* stream) {
  StatesOfStream states;  // destroyed without the lock: one may release those of another stream
  const std::lock_guard lock(mutex);
  if (auto entry = all_states().extract(stream)) states = std::move(entry.mapped());
}

}  // namespace dsmoe::kernels::cuda

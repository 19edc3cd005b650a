// The walk, held back by what has been used.
#include "store/read_ahead.h"

#include <utility>

namespace dsmoe::store {
namespace {

constexpr uint64_t kAheadBytes = uint64_t{256} << 20;

}  // namespace

ReadAhead::ReadAhead(const HfFolder& folder, std::vector<std::string> names)
    : folder_(folder), names_(std::move(names)), thread_([this] { walk(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    leave_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ReadAhead::used(uint64_t num_bytes) {
  {
    const std::lock_guard lock(mutex_);
    used_ += num_bytes;
  }
  changed_.notify_one();
}

void ReadAhead::walk() {
  uint64_t asked = 0;
  for (const std::string& name : names_) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return leave_ || asked < used_ + kAheadBytes; });
      if (leave_) return;
    }
    asked += folder_.read_ahead(name);
  }
}

}  // namespace dsmoe::store

// One budget for the request bodies of all connections.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/memory_reserve.h"

namespace dsmoe::serve {

// Bodies up to this size are always taken: their number is bounded by that of the connections.
inline constexpr std::size_t kSmallBody = std::size_t{16} << 10;

class BodyBudget {
 public:
  explicit BodyBudget(std::size_t limit) : limit_(limit) {}
  bool take(std::size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= limit_) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  void give_back(std::size_t bytes) { used_.fetch_sub(bytes); }
  std::size_t used() const { return used_.load(); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> used_{0};
};

// What one body holds of the budget. Whoever keeps the body keeps this too.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->give_back(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // False: the budget does not hold so much.
  bool grow_to(std::size_t bytes) {
    if (bytes <= kSmallBody || bytes <= bytes_) return true;
    if (!budget_->take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  std::size_t bytes_ = 0;
};

// A body as it grows. Memory is taken for what has come, not for what was announced.
struct GrowingBody {
  std::string text;
  std::size_t announced = 0;  // 0: it does not say
  std::shared_ptr<BodyBudget> budget;
  std::shared_ptr<BodyShare> share;  // null while it is small

  // False: the budget does not hold so much.
  bool make_room_for(std::size_t bytes) {
    const std::size_t size = text.size() + bytes;
    if (size <= text.capacity()) return true;
    std::size_t capacity = std::max(size, 2 * text.capacity());
    if (size <= announced) capacity = std::min(capacity, announced);
    if (!share && capacity > kSmallBody) share = std::make_shared<BodyShare>(budget);
    if (share && !share->grow_to(capacity)) return false;
    const KeepReserve keep;
    text.reserve(capacity);
    return true;
  }
};

}  // namespace dsmoe::serve

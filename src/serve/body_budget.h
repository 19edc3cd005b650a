// One budget for the bodies of all requests, and for the prompts they bring.
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

// What one request holds of the budget. It is kept as long as the body or the prompts are.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->give_back(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // From now on so much: of a body as it grows, then of what is made of it. False: the budget does
  // not hold it.
  bool hold(std::size_t bytes) {
    if (bytes <= kSmallBody) bytes = 0;
    if (bytes > bytes_ && !budget_->take(bytes - bytes_)) return false;
    if (bytes < bytes_) budget_->give_back(bytes_ - bytes);
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
  std::shared_ptr<BodyShare> share;  // null until something has come

  // False: the budget does not hold so much.
  bool make_room_for(std::size_t bytes) {
    const std::size_t size = text.size() + bytes;
    if (size <= text.capacity()) return true;
    std::size_t capacity = std::max(size, 2 * text.capacity());
    if (size <= announced) capacity = std::min(capacity, announced);
    if (!share) share = std::make_shared<BodyShare>(budget);
    if (!share->hold(capacity)) return false;
    const KeepReserve keep;
    text.reserve(capacity);
    return true;
  }
};

}  // namespace dsmoe::serve

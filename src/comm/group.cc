// What every transport has in common: all operations as exchanges, and their checks.
#include "comm/group.h"

#include <algorithm>

#include "base/error.h"
#include "base/flush_denormals.h"

namespace dsmoe::comm {

Group::Group(int rank, int size) : rank_(rank), size_(size) {
  DSMOE_CHECK(0 <= rank && rank < size, "rank {} of {}", rank, size);
}

void Group::exchange(std::string_view what, std::span<const Bytes> send,
                     std::span<const Room> receive) {
  const auto ranks = static_cast<std::size_t>(size_);
  DSMOE_CHECK(send.size() == ranks && receive.size() == ranks,
              "{}: rank {} sends {} parts and receives {}, the group has {} ranks", what, rank_,
              send.size(), receive.size(), size_);
  move(what, send, receive);
}

void Group::barrier(std::string_view what) {
  const std::vector<Bytes> send(static_cast<std::size_t>(size_));
  const std::vector<Room> receive(static_cast<std::size_t>(size_));
  exchange(what, send, receive);
}

std::vector<int64_t> Group::exchange_numbers(std::string_view what,
                                             std::span<const int64_t> numbers) {
  std::vector<int64_t> arrived(static_cast<std::size_t>(size_));
  DSMOE_CHECK(numbers.size() == arrived.size(), "{}: {} numbers for {} ranks", what, numbers.size(),
              size_);
  std::vector<Bytes> send;
  std::vector<Room> receive;
  for (std::size_t r = 0; r < arrived.size(); ++r) {
    send.push_back(std::as_bytes(numbers.subspan(r, 1)));
    receive.push_back(std::as_writable_bytes(std::span(&arrived[r], 1)));
  }
  exchange(what, send, receive);
  return arrived;
}

void Group::gather_bytes(std::string_view what, Bytes mine, Room all) {
  const std::vector<Bytes> send(static_cast<std::size_t>(size_), mine);
  std::vector<Room> receive;
  for (std::size_t r = 0; r < send.size(); ++r)
    receive.push_back(all.subspan(r * mine.size(), mine.size()));
  exchange(what, send, receive);
}

void Group::broadcast(std::string_view what, int root, Room data) {
  DSMOE_CHECK(0 <= root && root < size_, "{}: no rank {} in a group of {}", what, root, size_);
  const bool sends = root == rank_;
  const std::vector<Bytes> send(static_cast<std::size_t>(size_), sends ? Bytes(data) : Bytes());
  std::vector<Room> receive(static_cast<std::size_t>(size_));
  receive[static_cast<std::size_t>(root)] = data;
  exchange(what, send, receive);
}

template <class T>
void Group::sum_in_order(std::string_view what, const OrderedSum<T>& args) {
  const std::size_t count = args.sum.size();
  const auto ranks = static_cast<std::size_t>(size_);
  DSMOE_CHECK(args.addends.size() == ranks && args.order.size() == ranks,
              "{}: {} addends in an order of {}, the group has {} ranks", what, args.addends.size(),
              args.order.size(), size_);
  DSMOE_CHECK(args.room.size() >= ranks * count, "{}: room for {} numbers, {} arrive", what,
              args.room.size(), ranks * count);
  for (int r = 0; r < size_; ++r) {
    DSMOE_CHECK(std::ranges::count(args.order, r) == 1, "{}: rank {} is not once in the order",
                what, r);
  }
  std::vector<Bytes> send;
  std::vector<Room> receive;
  for (std::size_t r = 0; r < ranks; ++r) {
    send.push_back(std::as_bytes(args.addends[r]));
    receive.push_back(std::as_writable_bytes(args.room.subspan(r * count, count)));
  }
  exchange(what, send, receive);

  const FlushDenormals flush;
  const auto addend = [&](std::size_t turn) {
    return args.room.subspan(static_cast<std::size_t>(args.order[turn]) * count, count);
  };
  std::ranges::copy(addend(0), args.sum.begin());
  for (std::size_t turn = 1; turn < ranks; ++turn) {
    const std::span<const T> next = addend(turn);
    for (std::size_t i = 0; i < count; ++i) args.sum[i] = args.sum[i] + next[i];
  }
}

void Group::ordered_sum(std::string_view what, const OrderedSum<float>& args) {
  sum_in_order(what, args);
}

void Group::ordered_sum(std::string_view what, const OrderedSum<double>& args) {
  sum_in_order(what, args);
}

}  // namespace dsmoe::comm

// What every group must do, whatever its transport: called by all of its ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/group.h"

namespace dsmoe::comm::testing {

inline std::size_t at(int idx) { return static_cast<std::size_t>(idx); }

// What rank `from` sends to rank `to`: of sizes 0 .. size, with bytes that tell both.
inline std::vector<std::byte> parcel(int from, int to, int size) {
  std::vector<std::byte> bytes(at((from * 3 + to) % (size + 1)));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(from * 64 + to * 16 + static_cast<int>(i));
  return bytes;
}

inline void check_everything(Group& group) {
  const int size = group.size();
  const int rank = group.rank();
  std::vector<std::vector<std::byte>> sent(at(size)), arrived(at(size));
  std::vector<int64_t> counts;
  std::vector<Bytes> send;
  std::vector<Room> receive;
  for (int r = 0; r < size; ++r) {
    sent[at(r)] = parcel(rank, r, size);
    counts.push_back(static_cast<int64_t>(sent[at(r)].size()));
    send.emplace_back(sent[at(r)]);
  }
  const std::vector<int64_t> sizes = group.exchange_numbers("sizes", counts);
  for (int r = 0; r < size; ++r) {
    arrived[at(r)].resize(static_cast<std::size_t>(sizes[at(r)]));
    receive.emplace_back(arrived[at(r)]);
  }
  group.exchange("parcels", send, receive);
  for (int r = 0; r < size; ++r) EXPECT_EQ(arrived[at(r)], parcel(r, rank, size)) << r << rank;

  const std::vector<int> ranks = group.gather("ranks", rank * rank);
  ASSERT_EQ(ranks.size(), at(size));
  for (int r = 0; r < size; ++r) EXPECT_EQ(ranks[at(r)], r * r);

  for (int root = 0; root < size; ++root) {
    int values[3] = {rank, rank + 1, rank + 2};
    group.broadcast("values", root, std::as_writable_bytes(std::span(values)));
    EXPECT_EQ(values[2], root + 2);
  }
  group.broadcast("nothing", 0, {});
}

// Slices of different lengths, one of them empty; numbers whose sum tells the order.
template <class T>
void check_sum(Group& group, const std::vector<int>& order) {
  const int size = group.size();
  const auto value = [](int rank, std::size_t i) {
    const T big = std::is_same_v<T, float> ? T(1 << 25) : T(int64_t{1} << 54);
    const T values[] = {big, T(1), -big, T(3)};
    return values[rank] + static_cast<T>(i);
  };
  std::vector<std::vector<T>> mine(at(size));
  std::vector<std::span<const T>> addends;
  for (int r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < at(r) * 2; ++i) mine[at(r)].push_back(value(group.rank(), i));
    addends.emplace_back(mine[at(r)]);
  }
  std::vector<T> sum(at(group.rank()) * 2), room(sum.size() * at(size));
  const OrderedSum<T> args{.addends = addends, .order = order, .room = room, .sum = sum};
  group.ordered_sum("gradients", args);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    T expected = value(order[0], i);
    for (int turn = 1; turn < size; ++turn) expected = expected + value(order[at(turn)], i);
    EXPECT_EQ(sum[i], expected) << i;
  }
}

inline void check_sums(Group& group) {
  std::vector<int> order(at(group.size()));
  std::iota(order.begin(), order.end(), 0);
  check_sum<float>(group, order);
  check_sum<double>(group, order);
  std::rotate(order.begin(), order.begin() + (group.size() + 1) / 2, order.end());
  check_sum<float>(group, order);
  check_sum<double>(group, order);
}

}  // namespace dsmoe::comm::testing

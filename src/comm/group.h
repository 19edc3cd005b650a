// Group: the ranks that work together, and how bytes go between them. It knows bytes, not experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dsmoe::comm {

using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

// A sum whose order is fixed: the receiver adds, in the order given, whatever arrived first.
template <class T>
struct OrderedSum {
  std::span<const std::span<const T>> addends;  // [size]: this rank's, of the sum rank r makes
  std::span<const int> order;                   // every rank once
  std::span<T> room;                            // [size * sum.size()]: for what arrives
  std::span<T> sum;                             // written: (first + second) + third ...
};

// One of several ranks. Every rank calls the same functions in the same order; `what` names the
// call in errors and is the same on every rank. A call returns when this rank's part is done: what
// it was given may be written over, what it asked for is there. Where another rank fails, does not
// come or calls something else, it throws an error that names that rank and the call.
//
// A transport implements move() alone; all else is made of it.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Returns when every rank has come.
  void barrier(std::string_view what);

  // send[r] goes to rank r; receive[r] takes what rank r sends here. Both know how much: see
  // exchange_numbers. Parts may be empty. What a rank sends itself may lie where it is received:
  // then nothing is copied.
  void exchange(std::string_view what, std::span<const Bytes> send, std::span<const Room> receive);

  // One number for each rank; returns the one that each rank had for this.
  std::vector<int64_t> exchange_numbers(std::string_view what, std::span<const int64_t> send);

  // A small value of every rank, in the order of ranks.
  template <class T>
  std::vector<T> gather(std::string_view what, const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size_));
    gather_bytes(what, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }

  // The same of bytes, as many of each rank: room for `mine` of every rank.
  void gather_bytes(std::string_view what, Bytes mine, Room all);

  // `data` of rank `root` comes to all.
  void broadcast(std::string_view what, int root, Room data);

  // In fp32 or double, denormals flushed, as docs/numerics.md says.
  void ordered_sum(std::string_view what, const OrderedSum<float>& args);
  void ordered_sum(std::string_view what, const OrderedSum<double>& args);

 protected:
  Group(int rank, int size);

 private:
  // Both lists have an entry per rank.
  virtual void move(std::string_view what, std::span<const Bytes> send,
                    std::span<const Room> receive) = 0;

  template <class T>
  void sum_in_order(std::string_view what, const OrderedSum<T>& args);

  int rank_;
  int size_;
};

}  // namespace dsmoe::comm

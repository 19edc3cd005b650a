// What one rank sends another, as transports inside one process see it.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "comm/group.h"

namespace dsmoe::comm {

struct Parcel {
  int from = 0;
  int to = 0;
  std::size_t sent = 0;      // bytes
  std::size_t expected = 0;  // by the receiver
};

// What is wrong with it, or nothing.
inline std::string fault_of(const Parcel& parcel) {
  if (parcel.sent == parcel.expected) return {};
  return fmt::format("rank {} sends {} bytes to rank {}, which expects {}", parcel.from,
                     parcel.sent, parcel.to, parcel.expected);
}

inline void copy_parcel(Bytes from, Room to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace dsmoe::comm

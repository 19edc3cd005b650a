// Lists of the members become lists of the whole, with nothing for all others.
#include "comm/part.h"

#include <algorithm>

#include "base/error.h"

namespace dsmoe::comm {
namespace {

int place_in(std::span<const int> members, int rank) {
  const auto found = std::ranges::find(members, rank);
  DSMOE_CHECK(found != members.end(), "rank {} is not in its own part", rank);
  return static_cast<int>(found - members.begin());
}

}  // namespace

Part::Part(Group& whole, std::vector<int> members)
    : Group(place_in(members, whole.rank()), static_cast<int>(members.size())),
      whole_(whole),
      members_(std::move(members)),
      send_(static_cast<std::size_t>(whole.size())),
      receive_(static_cast<std::size_t>(whole.size())) {
  DSMOE_CHECK(
      std::ranges::is_sorted(members_) && members_.front() >= 0 && members_.back() < whole.size(),
      "a part of {} ranks holds ranks {} to {}", whole.size(), members_.front(), members_.back());
}

void Part::move(std::string_view what, std::span<const Bytes> send, std::span<const Room> receive) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto rank = static_cast<std::size_t>(members_[i]);
    send_[rank] = send[i];
    receive_[rank] = receive[i];
  }
  whole_.exchange(what, send_, receive_);
}

}  // namespace dsmoe::comm

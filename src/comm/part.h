// Some ranks of a group as a group of their own.
#pragma once

#include <vector>

#include "comm/group.h"

namespace dsmoe::comm {

// Every rank of `whole` is in one part, and all parts do the same at the same time: an exchange of
// one is an exchange of the whole. So a part fails as the whole does, and errors name the ranks of
// the whole.
class Part final : public Group {
 public:
  // `members`: ranks of `whole`, ascending, this one among them. `whole` must outlive it.
  Part(Group& whole, std::vector<int> members);

 private:
  void move(std::string_view what, std::span<const Bytes> send,
            std::span<const Room> receive) override;

  Group& whole_;
  std::vector<int> members_;
  std::vector<Bytes> send_;  // by rank of the whole
  std::vector<Room> receive_;
};

}  // namespace dsmoe::comm

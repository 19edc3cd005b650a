// The control connections of a job of processes: each tells the first that it lives and what it
// does, and the first tells all why the job ends. Data never goes this way.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/group.h"

namespace dsmoe::comm {

struct WatchTimes {
  std::chrono::milliseconds beat{200};        // between signs of life
  std::chrono::milliseconds silence{12'000};  // after which a rank counts as frozen or cut off
  // A process that knows of a failure and does not end by itself is ended after so long: it may be
  // in the middle of something that nobody can interrupt.
  std::chrono::milliseconds grace{8'000};
};

class Watch {
 public:
  // Called by all ranks together; each has a process of its own. Rank 0 listens, on a port that the
  // system chooses; a random token, which goes through `group`, keeps strangers out. Throws
  // Error(io) where a rank cannot reach rank 0.
  Watch(Group& group, const WatchTimes& times);
  ~Watch();  // says goodbye: that this rank ends is no failure then
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // What this rank does, for the message of others should it stop.
  void doing(std::string_view what);
  // Tells all ranks that this one fails, and why.
  void fail(std::string_view why);

  // Quick: whether some rank has failed. Then why, with rank, host and what it did.
  bool has_failure() const;
  std::string failure() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe::comm

// MutedLog: this thread's lines are not shown while it lives. Of ranks that are threads, one
// speaks.
#pragma once

namespace dsmoe {

class MutedLog {
 public:
  MutedLog();
  ~MutedLog();
  MutedLog(const MutedLog&) = delete;
  MutedLog& operator=(const MutedLog&) = delete;
};

}  // namespace dsmoe

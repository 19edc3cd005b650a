// Keeps the disk busy while tensors are worked on: asks for those that come next.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/hf_folder.h"

namespace dsmoe::store {

// One thread that walks over the tensors in the order they will be used and asks the system to
// read them, at most a bounded number of bytes ahead. What is read lies in the system's cache, not
// in the process.
class ReadAhead {
 public:
  ReadAhead(const HfFolder& folder, std::vector<std::string> names);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void used(uint64_t num_bytes);  // so many more bytes of the tensors

 private:
  void walk();

  const HfFolder& folder_;
  std::vector<std::string> names_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t used_ = 0;
  bool leave_ = false;
  std::thread thread_;
};

}  // namespace dsmoe::store

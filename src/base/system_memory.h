// How much memory this process can get: RAM, swap, cgroup limit.
#pragma once

#include <cstdint>
#include <string>

namespace dsmoe {

// In bytes. What cannot be read is as good as endless.
struct SystemMemory {
  int64_t most = INT64_MAX;       // RAM, cut to the limit of the control group, and swap
  int64_t available = INT64_MAX;  // of the RAM now, without swapping
};

// `root` is put before /sys and /proc, so that tests can show it another machine.
SystemMemory system_memory(const std::string& root = "");

// Before so many bytes are filled, which Linux promises to anyone and pays for by killing: throws
// (resource) when there is less on this machine, warns when there is less just now.
void expect_memory(const std::string& what, int64_t bytes,
                   const SystemMemory& memory = system_memory());

}  // namespace dsmoe

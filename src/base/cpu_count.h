// How many physical cores this process may use: affinity mask, SMT siblings, cgroup quota.
#pragma once

#include <string>
#include <vector>

namespace dsmoe {

// Logical CPUs of the process's affinity mask, ascending. Never empty.
std::vector<int> available_cpus();

// Distinct physical cores among `cpus`, cut to the cgroup CPU quota (rounded up). At least 1.
// `root` is put before /sys and /proc, so that tests can show it another machine.
int count_physical_cores(const std::vector<int>& cpus, const std::string& root = "");

// count_physical_cores(available_cpus()).
int available_physical_cores();

}  // namespace dsmoe

// Reads the affinity mask, /sys topology and cgroup (v1 and v2) files; whatever cannot be read does
// not limit.
#include "base/cpu_count.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

namespace dsmoe {
namespace {

// The first line of a file, or "" when it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// CPUs allowed by one quota, infinity when there is none: "max 100000" and "-1" mean no limit.
double quota_in_cpus(const std::string& quota_text, const std::string& period_text) {
  const double none = std::numeric_limits<double>::infinity();
  try {
    const double quota = std::stod(quota_text);
    const double period = std::stod(period_text);
    return quota > 0 && period > 0 ? quota / period : none;
  } catch (const std::exception&) {
    return none;
  }
}

double quota_of_group_v2(const std::string& folder) {
  const std::string line = first_line(folder + "/cpu.max");
  const size_t space = line.find(' ');
  if (space == std::string::npos) return std::numeric_limits<double>::infinity();
  return quota_in_cpus(line.substr(0, space), line.substr(space + 1));
}

double quota_of_group_v1(const std::string& folder) {
  return quota_in_cpus(first_line(folder + "/cpu.cfs_quota_us"),
                       first_line(folder + "/cpu.cfs_period_us"));
}

// The tightest quota on the way from the group up to the mount. A container without a cgroup
// namespace sees the host's path in /proc but its own group at the mount, so the mount itself
// always counts.
template <class QuotaOfGroup>
double tightest_quota(const std::string& mount, std::string group, QuotaOfGroup quota_of_group) {
  double quota = quota_of_group(mount);
  while (group.size() > 1) {
    quota = std::min(quota, quota_of_group(mount + group));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return quota;
}

double cgroup_quota(const std::string& root) {
  double quota = std::numeric_limits<double>::infinity();
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      quota = std::min(quota, tightest_quota(root + "/sys/fs/cgroup", group, quota_of_group_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
        quota = std::min(quota, tightest_quota(root + mount, group, quota_of_group_v1));
      }
    }
  }
  return quota;
}

}  // namespace

std::vector<int> available_cpus() {
  // The kernel refuses (EINVAL) a mask smaller than its own, so grow until it fits.
  for (int size = 1024; size <= (1 << 20); size *= 2) {
    cpu_set_t* mask = CPU_ALLOC(size);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, mask);
    const bool ok = sched_getaffinity(0, bytes, mask) == 0;
    const bool too_small = !ok && errno == EINVAL;
    std::vector<int> cpus;
    for (int cpu = 0; ok && cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (!cpus.empty()) return cpus;
    if (!too_small) break;
  }
  std::vector<int> cpus;
  const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  return cpus;
}

int count_physical_cores(const std::vector<int>& cpus, const std::string& root) {
  // Siblings share one text such as "0,64"; a CPU without the file is a core of its own.
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string name = "cpu" + std::to_string(cpu);
    const std::string siblings =
        first_line(root + "/sys/devices/system/cpu/" + name + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  const double limit = std::ceil(cgroup_quota(root));
  const double count = std::min(static_cast<double>(cores.size()), limit);
  return std::max(1, static_cast<int>(count));
}

int available_physical_cores() { return count_physical_cores(available_cpus()); }

}  // namespace dsmoe

// Reads /proc/meminfo and the limits of cgroup v2.
#include "base/system_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/log.h"

namespace dsmoe {
namespace {

// The tightest on the way from the group up to the mount; "max" is none.
int64_t cgroup_limit(const std::string& root) {
  int64_t limit = INT64_MAX;
  const auto apply = [&](const std::string& group) {
    std::ifstream file(root + "/sys/fs/cgroup" + group + "/memory.max");
    int64_t bytes = 0;
    if (file >> bytes) limit = std::min(limit, bytes);
  };
  apply("");
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    for (std::string group = line.substr(3); group.size() > 1 && group.front() == '/';
         group.resize(group.rfind('/'))) {
      apply(group);
    }
  }
  return limit;
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); }

}  // namespace

SystemMemory system_memory(const std::string& root) {
  std::map<std::string, int64_t> found;
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    found[line.substr(0, colon)] = std::atoll(line.c_str() + colon + 1) * 1024;
  }
  SystemMemory memory;
  if (found.count("MemTotal") == 0 || found.count("MemAvailable") == 0) return memory;
  const int64_t limit = cgroup_limit(root);
  memory.most = std::min(found["MemTotal"], limit) + found["SwapTotal"];
  memory.available = std::min(found["MemAvailable"], limit);
  return memory;
}

void expect_memory(const std::string& what, int64_t bytes, const SystemMemory& memory) {
  if (bytes > memory.most) {
    fail(ErrorKind::resource, "{} would take {:.1f} GiB of memory, there are {:.1f} GiB here", what,
         gib(bytes), gib(memory.most));
  }
  if (bytes > memory.available) {
    log_warning("{} will take {:.1f} GiB of memory, {:.1f} GiB are free", what, gib(bytes),
                gib(memory.available));
  }
}

}  // namespace dsmoe

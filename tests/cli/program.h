// Runs the dsmoe program as a user would and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace dsmoe::testing {

// A program that runs longer hangs: below the limit of a test (cmake/DsmoeTargets.cmake), and many
// times what any command here takes.
inline constexpr unsigned kProgramSeconds = 280;

struct Ran {
  int code = -1;  // exit code; 128 + signal when killed
  std::string out, err;
};

struct RunOptions {
  std::vector<std::string> environment = {};  // added to this process's: "NAME=value"
  std::string out_file = {};                  // stdout goes there instead: "/dev/full"
  std::string input = {};                     // stdin; empty: /dev/null
};

// The program of this build, killed after kProgramSeconds.
Ran run_dsmoe(const std::vector<std::string>& arguments, const RunOptions& options = {});

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

}  // namespace dsmoe::testing

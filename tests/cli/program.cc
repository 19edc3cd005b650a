// fork, exec, and files for what the program says.
#include "cli/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/scratch_folder.h"

namespace dsmoe::testing {
namespace {

void redirect(int descriptor, const char* path, int flags) {
  const int file = ::open(path, flags, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
  ::close(file);
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  DSMOE_CHECK(file.good(), "cannot write {}", path);
}

Ran run_dsmoe(const std::vector<std::string>& arguments, const RunOptions& options) {
  const ScratchFolder scratch;
  const std::string out = options.out_file.empty() ? (scratch / "out").string() : options.out_file;
  const std::string err = (scratch / "err").string();
  const std::string in = options.input.empty() ? "/dev/null" : (scratch / "in").string();
  if (!options.input.empty()) write_file(in, options.input);
  std::vector<char*> argv{const_cast<char*>(DSMOE_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const pid_t child = ::fork();
  DSMOE_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    for (const std::string& variable : options.environment) {
      ::putenv(const_cast<char*>(variable.c_str()));
    }
    redirect(0, in.c_str(), O_RDONLY);
    redirect(1, out.c_str(), O_WRONLY | O_CREAT);
    redirect(2, err.c_str(), O_WRONLY | O_CREAT);
    ::alarm(kProgramSeconds);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (options.out_file.empty()) ran.out = read_file(out);
  ran.err = read_file(err);
  return ran;
}

}  // namespace dsmoe::testing

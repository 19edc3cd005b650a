// fork, exec, a pipe.
#include "serve/running_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace dsmoe::testing {

RunningServer::RunningServer(RunningServerOptions options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  options.arguments.insert(options.arguments.begin(), {options.program, "serve"});
  std::vector<char*> argv;
  for (std::string& argument : options.arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = options.log_file.empty() ? "/dev/null" : options.log_file;
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    const int log_file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(options.log_with_output ? STDOUT_FILENO : log_file, STDERR_FILENO);
    for (std::string& variable : options.environment) ::putenv(variable.data());
    if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output_ = ends[0];
}

RunningServer::~RunningServer() {
  if (output_ >= 0) ::close(output_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::string RunningServer::read_line() {
  std::string line;
  char byte = 0;
  while (::read(output_, &byte, 1) == 1 && byte != '\n') line += byte;
  return line;
}

bool RunningServer::wait_until_serving() {
  for (std::string line; !(line = read_line()).empty();) {
    if (!line.starts_with("serving ")) continue;
    port_ = static_cast<uint16_t>(std::atoi(line.c_str() + line.rfind(':') + 1));
    return port_ != 0;
  }
  return false;
}

void RunningServer::leave() { ::close(std::exchange(output_, -1)); }

void RunningServer::signal(int number) { ::kill(pid_, number); }

int RunningServer::wait() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace dsmoe::testing

// dsmoe serve as a user runs it: refuses exposure, serves, and ends cleanly on SIGTERM.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "serve/http_client.h"

namespace dsmoe::testing {
namespace {

// The program in the background; stdout is read up to the line that names the port.
class Running {
 public:
  explicit Running(std::vector<std::string> arguments) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    arguments.insert(arguments.begin(), {DSMOE_PROGRAM, "serve"});
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      const int nothing = ::open("/dev/null", O_WRONLY);
      ::dup2(nothing, STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    char byte = 0;
    while (::read(ends[0], &byte, 1) == 1 && byte != '\n') line_ += byte;
    ::close(ends[0]);
  }
  ~Running() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  const std::string& line() const { return line_; }
  uint16_t port() const {
    const std::size_t colon = line_.rfind(':');
    return static_cast<uint16_t>(std::atoi(line_.c_str() + colon + 1));
  }
  void terminate() { ::kill(pid_, SIGTERM); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  std::string line_;
};

TEST(ServeProgram, SigtermLetsRunningRequestsFinish) {
  const ScratchFolder scratch;
  const std::string model = (scratch / "model").string();
  const std::string config = std::string(DSMOE_SOURCE_DIR) + "/tests/clients/config.json";
  ASSERT_EQ(
      run_dsmoe({"demo", "--random", "--config", config, "-o", model, "--seed", "3", "-q"}).code,
      0);
  Running server({model, "--port", "0", "--threads", "1", "--model-name", "m"});
  ASSERT_TRUE(server.line().starts_with("serving m on http://127.0.0.1:")) << server.line();
  // No tokenizer: ids in, numbers out.
  const Json body{
      {"prompt", {5, 6, 7}}, {"max_tokens", 250}, {"ignore_eos", true}, {"stream", true}};
  Client client(server.port());
  client.send(format_request("POST", "/v1/completions", body.dump()));
  std::string text = client.receive_some();
  ASSERT_NE(text, "");
  server.terminate();
  for (std::string piece; !(piece = client.receive_some()).empty();) text += piece;
  EXPECT_NE(text.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(server.wait(), 0);
}

TEST(ServeProgram, RefusesWhatItCannotServe) {
  const Ran exposed = run_dsmoe({"serve", "nowhere", "--host", "0.0.0.0"});
  EXPECT_EQ(exposed.code, 2);
  EXPECT_NE(exposed.err.find("--api-key"), std::string::npos) << exposed.err;
  EXPECT_EQ(run_dsmoe({"serve", "nowhere", "--host", "example.org"}).code, 2);
  const Ran missing = run_dsmoe({"serve", "nowhere"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("nowhere"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace dsmoe::testing

// Signals and a real terminal: ctrl-c ends a command with 130, and only the answer in a chat.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "support/golden.h"

namespace dsmoe::testing {
namespace {

// The program behind a pseudo-terminal of 80 columns.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments) {
    std::vector<char*> argv{const_cast<char*>(DSMOE_PROGRAM)};
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&master_, nullptr, nullptr, &size);
    if (child_ == 0) {
      ::alarm(kProgramSeconds);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(master_);
  }

  void type(std::string_view bytes) {
    ASSERT_EQ(::write(master_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  // Reads until `text` has appeared after what earlier calls saw; fails after 120 s.
  ::testing::AssertionResult sees(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (;;) {
      if (const std::size_t at = seen_.find(text, from_); at != std::string::npos) {
        from_ = at + text.size();
        return ::testing::AssertionSuccess();
      }
      pollfd output{.fd = master_, .events = POLLIN, .revents = 0};
      if (std::chrono::steady_clock::now() > deadline) break;
      if (::poll(&output, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = ::read(master_, bytes, sizeof bytes);
      if (count <= 0) break;  // the program has ended
      seen_.append(bytes, static_cast<std::size_t>(count));
    }
    return ::testing::AssertionFailure() << "\"" << text << "\" did not appear in:\n" << seen_;
  }

  int exit_code() {
    while (sees("\x01 never said")) {
    }
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& seen() const { return seen_; }

 private:
  int master_ = -1;
  pid_t child_ = -1;
  std::string seen_;
  std::size_t from_ = 0;
};

// A model with room for an answer of minutes.
class LongModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string config = read_file((goldens_folder() / "released" / "config.json").string());
    const std::string from = "\"max_position_embeddings\": 256",
                      to = "\"max_position_embeddings\": 60000";
    ASSERT_NE(config.find(from), std::string::npos);
    config.replace(config.find(from), from.size(), to);
    const std::string vocabulary = "\"vocab_size\": 67";
    config.replace(config.find(vocabulary), vocabulary.size(), "\"vocab_size\": 300");
    write_file((scratch_ / "config.json").string(), config);
    ASSERT_EQ(run_dsmoe({"demo", "--random", "-o", model(), "--config",
                         (scratch_ / "config.json").string(), "-q"})
                  .code,
              0);
    write_file((scratch_ / "text").string(),
               "some text to train a tokenizer on: some text, some more text\n");
    ASSERT_EQ(run_dsmoe({"tokenizer", "train", (scratch_ / "text").string(), "--vocab-size", "300",
                         "-o", model(), "--threads", "1"})
                  .code,
              0);
    write_file(model() + "/chat_template.jinja",
               "{% for m in messages %}{{ m['content'] }}\n{% endfor %}");
  }
  std::string model() const { return (scratch_ / "model").string(); }

  ScratchFolder scratch_;
};

TEST_F(LongModel, InterruptStopsTheAnswerAndNotTheChat) {
  Terminal terminal({"chat", model(), "--threads", "1", "--logit-bias", "1:-1000"});
  ASSERT_TRUE(terminal.sees("> "));
  terminal.type("hallo\x1b[D\x1b[D\x1b[D\x1b[D\x7fH\r");  // edited to Hallo
  ASSERT_TRUE(terminal.sees("Hallo"));
  ASSERT_TRUE(terminal.sees("\n"));
  ASSERT_TRUE(terminal.sees("some"));  // the answer is under way
  terminal.type("\x03");
  ASSERT_TRUE(terminal.sees("[stopped]"));
  ASSERT_TRUE(terminal.sees("tokens/s"));
  ASSERT_TRUE(terminal.sees("> "));
  terminal.type("/save\r");
  ASSERT_TRUE(terminal.sees("needs a file name"));  // a fault does not end it either
  ASSERT_TRUE(terminal.sees("> "));
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.seen();
}

TEST_F(LongModel, ALineLongerThanTheTerminalStaysWholeOnceSent) {
  Terminal terminal({"chat", model(), "--threads", "1", "--max-tokens", "1"});
  ASSERT_TRUE(terminal.sees("> "));
  std::string line;
  for (int i = 0; i < 60; ++i) line += std::to_string(100 + i) + " ";
  terminal.type(line);
  ASSERT_TRUE(terminal.sees("159"));
  EXPECT_EQ(terminal.seen().find(line), std::string::npos);  // one row, scrolled sideways
  terminal.type("\r");
  EXPECT_TRUE(terminal.sees(line)) << terminal.seen();
  ASSERT_TRUE(terminal.sees("tokens/s"));
  ASSERT_TRUE(terminal.sees("> "));
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(LongModel, KeysTypedDuringTheAnswerWaitForTheNextLine) {
  Terminal terminal(
      {"chat", model(), "--threads", "1", "--max-tokens", "4000", "--logit-bias", "1:-1000"});
  ASSERT_TRUE(terminal.sees("> "));
  terminal.type("text\r");
  ASSERT_TRUE(terminal.sees("some"));  // the answer is under way
  terminal.type("/help\r\x04");
  ASSERT_TRUE(terminal.sees("tokens/s"));
  const std::size_t answer = terminal.seen().find("some");
  EXPECT_EQ(terminal.seen().substr(0, terminal.seen().find("tokens/s")).find("/help", answer),
            std::string::npos);
  ASSERT_TRUE(terminal.sees("/save"));  // of the help
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.seen();
}

TEST_F(LongModel, InterruptEndsGenerateWith130) {
  Terminal terminal(
      {"generate", model(), "-p", "text", "--threads", "1", "--ignore-eos", "--seed", "1"});
  ASSERT_TRUE(terminal.sees("some"));
  terminal.type("\x03");
  EXPECT_EQ(terminal.exit_code(), 130) << terminal.seen();
  EXPECT_NE(terminal.seen().find("tokens/s"), std::string::npos);
}

TEST_F(LongModel, ExpertsAreColouredOnATerminalUnlessAskedNot) {
  const std::vector<std::string> arguments{
      "generate", model(),        "-p", "text",         "--threads",
      "1",        "--max-tokens", "3",  "--ignore-eos", "--show-experts"};
  Terminal coloured(arguments);
  EXPECT_EQ(coloured.exit_code(), 0);
  EXPECT_NE(coloured.seen().find("\x1b[1;38;5;"), std::string::npos) << coloured.seen();
  ::setenv("NO_COLOR", "1", 1);
  Terminal plain(arguments);
  EXPECT_EQ(plain.exit_code(), 0);
  ::unsetenv("NO_COLOR");
  EXPECT_EQ(plain.seen().find("\x1b[1;38"), std::string::npos) << plain.seen();
  EXPECT_NE(plain.seen().find("layer 2"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::testing

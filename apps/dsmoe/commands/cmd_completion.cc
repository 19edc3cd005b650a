// dsmoe completion, dsmoe man: what a shell and man(1) want to know of the commands.
#include <memory>

#include "commands/command.h"
#include "commands/version.h"
#include "terminal/output.h"

namespace dsmoe::app {

void add_completion(CommandLine& app) {
  auto shell = std::make_shared<std::string>();
  CommandLine command =
      app.command("completion", "Print a script that completes commands in a shell");
  command.option("shell", *shell, "bash, zsh or fish")
      .required()
      .one_of({"bash", "zsh", "fish"})
      .type("SHELL");
  command.footer(
      "make install puts the scripts where the shells look for them.\n\n"
      "Examples:\n  source <(dsmoe completion bash)\n"
      "  dsmoe completion fish > ~/.config/fish/completions/dsmoe.fish");
  command.runs([shell](const Given& given) {
    print("{}", completion_script(describe(*given.program), *shell));
    return kDone;
  });
}

void add_man(CommandLine& app) {
  CommandLine command = app.command("man", "Print the man page");
  command.footer(
      "make install puts it where man looks for it.\n\nExamples:\n  dsmoe man > dsmoe.1 && man -l "
      "dsmoe.1");
  command.runs([](const Given& given) {
    print("{}", man_page(describe(*given.program), "dsmoe " + version()));
    return kDone;
  });
}

}  // namespace dsmoe::app

// The commands and flags as data: what --help, shell completions and the man page are made from.
#pragma once

#include <string>
#include <vector>

namespace dsmoe::app {

struct DescribedFlag {
  std::vector<std::string> names;  // "-p", "--prompt"; "model" for an argument that stands alone
  std::string type;                // empty: a switch
  std::string help;
  std::vector<std::string> choices;  // none: anything
  bool is_required = false, is_argument = false, has_optional_value = false;

  bool takes_value() const { return !type.empty(); }
  bool takes_path() const {
    return type == "FILE" || type == "DIR" || type == "MODEL" || type == "RUN";
  }
};

struct DescribedCommand {
  std::string name;  // "tokenizer encode": without the program's
  std::string help, footer;
  std::vector<DescribedFlag> flags;
  std::vector<DescribedCommand> commands;
};

// The program's own name, help and footer, and its commands.
using Description = DescribedCommand;

// A script that completes commands, flags, choices and paths; `shell` is bash, zsh or fish.
std::string completion_script(const Description& program, const std::string& shell);

// In the language of man(7).
std::string man_page(const Description& program, const std::string& version);

}  // namespace dsmoe::app

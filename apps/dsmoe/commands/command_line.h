// The one door to the parser of the command line: only command_line.cc meets CLI11, which takes
// seconds to compile in every file that includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "commands/description.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dsmoe::app {

// Returns the exit code. Run once, after the command line is parsed.
using Action = std::function<int()>;

struct Program;

// The flags that the user gave, for commands that keep them.
struct Given {
  struct Flag {
    std::string name;                 // "--batch"
    std::string type;                 // as the help calls it; empty: a switch
    std::vector<std::string> values;  // none of a switch
  };
  std::vector<std::string> words;  // the command line
  std::vector<Flag> flags;
  const Program* program = nullptr;
};

// Another value for the one given, and what to tell of it; empty: nothing.
struct Replaced {
  std::string value;
  std::string note = {};
};

// The parser fills these.
struct Parse {
  std::vector<std::string> words;
  const Program* program = nullptr;
  std::vector<std::string> notes = {};  // told once all is parsed, unless --quiet is given
  Action chosen = {};
  std::map<const CLI::Option*, std::vector<std::string>> choices = {};
};

// One flag or argument, to be described further.
class Flag {
 public:
  Flag(CLI::Option* option, Parse* parse) : option_(option), parse_(parse) {}

  Flag type(const std::string& name) const;  // as the help calls it: FILE, N
  Flag required() const;
  Flag show_default() const;  // the value it had when it was added
  Flag range(int64_t lowest, int64_t highest) const;
  Flag range(double lowest, double highest) const;
  Flag at_least(int64_t lowest) const;
  Flag one_of(const std::vector<std::string>& values) const;
  Flag excludes(const Flag& other) const;
  // `fault` says what is wrong with a value, nothing if nothing is.
  Flag check(std::function<std::string(const std::string&)> fault) const;
  // Another value takes the place of the one given.
  Flag replace(std::function<Replaced(const std::string&)> by) const;
  Flag repeatable() const;                                  // one value each time
  Flag comma_separated() const;                             // several values at once
  Flag value_optional(const std::string& otherwise) const;  // --flag alone means this value

 private:
  CLI::Option* option_;
  Parse* parse_;
};

// A command, or a group of its flags.
class CommandLine {
 public:
  CommandLine(CLI::App* app, Parse* parse) : app_(app), parse_(parse) {}

  // Names are "--long", "-s,--long", or "word" for an argument that stands alone.
  template <typename T>
  Flag option(const std::string& names, T& value, const std::string& help = {});
  Flag flag(const std::string& names, bool& value, const std::string& help);

  CommandLine command(const std::string& name, const std::string& help);
  void needs_command();
  // Flags of which exactly one, or at most one, is given.
  CommandLine exactly_one(const std::string& name);
  CommandLine at_most_one(const std::string& name);

  void footer(const std::string& text);
  void runs(Action action);  // when this is the command given
  void runs(std::function<int(const Given&)> action);

 private:
  CLI::App* app_;
  Parse* parse_;
};

struct Program {
  std::string name;
  std::string version;
  std::string help;
  std::string footer;
  std::vector<void (*)(CommandLine&)> commands;  // each adds one
};

// The action of the command given; none after --help and --version, which it has printed. Wrong
// usage is thrown.
Action parse_command_line(const Program& program, int argc, char** argv);

// All commands and flags of a program.
Description describe(const Program& program);

// Into the variables of the flags that `add` adds, from words such as --batch=4. Wrong ones are
// thrown as wrong usage.
Given parse_words(std::vector<std::string> words, const std::function<void(CommandLine&)>& add);

// The same from flags that were kept.
void parse_flags(const std::vector<Given::Flag>& flags,
                 const std::function<void(CommandLine&)>& add);

}  // namespace dsmoe::app

// Completion scripts for three shells.
#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "commands/description.h"

namespace dsmoe::app {
namespace {

// Inside single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string safe = "'";
  for (const char c : text) safe += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return safe + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Every command that flags belong to, those inside others too.
void for_each_command(const DescribedCommand& command,
                      const std::function<void(const DescribedCommand&)>& f) {
  for (const DescribedCommand& inner : command.commands) {
    f(inner);
    for_each_command(inner, f);
  }
}

std::vector<std::string> names_of(const std::vector<DescribedCommand>& commands) {
  std::vector<std::string> names;
  for (const DescribedCommand& command : commands) {
    names.push_back(command.name.substr(command.name.rfind(' ') + 1));
  }
  return names;
}

std::vector<std::string> flag_names(const DescribedCommand& command) {
  std::vector<std::string> names;
  for (const DescribedFlag& flag : command.flags) {
    if (!flag.is_argument) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

std::string bash_script(const Description& program) {
  std::string words = fmt::format("    {}) words={} ;;\n", quoted(""),
                                  quoted(joined(names_of(program.commands)) + " --help --version"));
  std::string values;
  for_each_command(program, [&](const DescribedCommand& command) {
    std::vector<std::string> all = names_of(command.commands);
    for (const std::string& name : flag_names(command)) all.push_back(name);
    words += fmt::format("    {}) words={} ;;\n", quoted(command.name), quoted(joined(all)));
    for (const DescribedFlag& flag : command.flags) {
      // What a value may be; where that is anything but a path, nothing is offered.
      if (flag.is_argument || !flag.takes_value() || flag.takes_path()) continue;
      for (const std::string& name : flag.names) {
        values += fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$current\")); return ;;\n",
                              quoted(command.name + " " + name), quoted(joined(flag.choices)));
      }
    }
  });
  std::string nested;
  for (const DescribedCommand& command : program.commands) {
    if (!command.commands.empty()) nested += (nested.empty() ? "" : "|") + command.name;
  }
  return fmt::format(
      "# bash completion for {0}: made by {0} completion bash\n"
      "_{0}() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command= words= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${{COMP_WORDS[i]}} in\n"
      "      -*) continue ;;\n"
      "    esac\n"
      "    if [[ -z $command ]]; then\n"
      "      command=${{COMP_WORDS[i]}}\n"
      "      case $command in {3}) continue ;; esac\n"
      "    elif [[ -n ${{COMP_WORDS[i]}} ]]; then\n"
      "      case $command in {3}) command+=\" ${{COMP_WORDS[i]}}\" ;; esac\n"
      "    fi\n"
      "    break\n"
      "  done\n"
      "  case \"$command $before\" in\n{2}  esac\n"
      "  case $command in\n{1}  esac\n"
      "  if [[ $current == -* || -z $command || $command =~ ^({3})$ ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  else\n"
      "    compopt -o filenames 2> /dev/null\n"
      "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  fi\n"
      "}}\n"
      "complete -F _{0} {0}\n",
      program.name, words, values, nested);
}

// For _arguments: brackets and colons mean something there.
std::string zsh_text(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe;
}

// `place` is that of an argument: "1", or "*" for the last, which takes what is left.
std::string zsh_flag(const DescribedFlag& flag, const std::string& place) {
  std::string value;
  if (flag.takes_value()) {
    const std::string action = !flag.choices.empty() ? "(" + joined(flag.choices) + ")"
                               : flag.takes_path()   ? "_files"
                                                     : " ";
    value =
        fmt::format("{}:{}:{}", flag.has_optional_value ? ":" : "", zsh_text(flag.type), action);
  }
  if (flag.is_argument) return " " + quoted(place + value);
  std::string all;
  for (const std::string& name : flag.names) {
    all += " " + quoted(fmt::format("*{}[{}]{}", name, zsh_text(flag.help), value));
  }
  return all;
}

std::string zsh_cases(const std::vector<DescribedCommand>& commands, int depth) {
  std::string cases, list;
  for (const DescribedCommand& command : commands) {
    const std::string name = command.name.substr(command.name.rfind(' ') + 1);
    list += " " + quoted(zsh_text(name) + ":" + zsh_text(command.help));
    std::string body;
    if (command.commands.empty()) {
      body = fmt::format("(( CURRENT -= {0} )); shift {0} words; _arguments", depth - 1);
      auto left = std::count_if(command.flags.begin(), command.flags.end(),
                                [](const DescribedFlag& flag) { return flag.is_argument; });
      int place = 0;
      for (const DescribedFlag& flag : command.flags) {
        if (flag.is_argument) ++place, --left;
        const std::string where = left == 0 ? "*" : std::to_string(place);
        body += " \\\n    " + zsh_flag(flag, where).substr(1);
      }
    } else {
      body = zsh_cases(command.commands, depth + 1);
    }
    cases += fmt::format("  {})\n    {}\n    ;;\n", name, body);
  }
  return fmt::format(
      "if (( CURRENT == {0} )); then\n  commands=({1})\n  _describe command commands\nelse\n"
      "  case $words[{0}] in\n{2}  esac\nfi\n",
      depth, list, cases);
}

std::string zsh_script(const Description& program) {
  return fmt::format(
      "#compdef {0}\n# zsh completion for {0}: made by {0} completion zsh\n_{0}() {{\n"
      "local -a commands\n{1}}}\n"
      "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _{0} \"$@\"; else compdef _{0} {0}; "
      "fi\n",
      program.name, zsh_cases(program.commands, 2));
}

// What a flag's value may be: a path, one of a list, or nothing that could be offered.
std::string fish_value(const DescribedFlag& flag) {
  if (!flag.takes_value()) return "";
  std::string value = flag.takes_path() ? " -F" : " -f";
  if (!flag.has_optional_value) value = " -r" + value;
  if (!flag.choices.empty()) value += " -a " + quoted(joined(flag.choices));
  return value;
}

// Two conditions: the words so far are exactly these; or they begin with these.
std::string fish_script(const Description& program) {
  std::string script = fmt::format(
      "# fish completion for {0}: made by {0} completion fish\n"
      "function __{0}_said\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  test \"$words\" = \"$argv\"\n"
      "end\n"
      "function __{0}_runs\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  string match -q -- \"$argv *\" \"$words \"\n"
      "end\n"
      "complete -c {0} -f\n",
      program.name);
  const auto offer = [&](const std::vector<DescribedCommand>& commands, const std::string& before) {
    for (const DescribedCommand& command : commands) {
      const std::string name = command.name.substr(command.name.rfind(' ') + 1);
      script += fmt::format("complete -c {0} -n {1} -a {2} -d {3}\n", program.name,
                            quoted(fmt::format("__{}_said{}", program.name, before)), name,
                            quoted(command.help));
    }
  };
  offer(program.commands, "");
  for_each_command(program, [&](const DescribedCommand& command) {
    offer(command.commands, " " + command.name);
    const std::string when = quoted(fmt::format("__{}_runs {}", program.name, command.name));
    for (const DescribedFlag& flag : command.flags) {
      std::string line = fmt::format("complete -c {} -n {}", program.name, when);
      if (flag.is_argument) {
        if (flag.takes_path()) script += line + " -F\n";
        if (!flag.choices.empty()) line += " -a " + quoted(joined(flag.choices));
        if (!flag.choices.empty()) script += line + "\n";
        continue;
      }
      for (const std::string& name : flag.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      script += line + fish_value(flag) + " -d " + quoted(flag.help) + "\n";
    }
  });
  return script;
}

}  // namespace

std::string completion_script(const Description& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  fail(ErrorKind::usage, "{}: expected bash, zsh or fish", shell);
}

}  // namespace dsmoe::app

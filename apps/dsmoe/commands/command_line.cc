// CLI11 behind an interface of ours.
#include "commands/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

// CLI11 by itself takes nan and inf, cuts what is too large to the largest number there is, and
// reads 010 as 8. `expected` gives what else the value should be, nothing if it is.
template <class T, class Expected>
void check_number(CLI::Option* option, Expected expected) {
  option->check(CLI::Validator(
      [expected](std::string& text) {
        T value{};
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        std::string range;
        bool is_right = error == std::errc() && rest == end;
        if constexpr (std::is_floating_point_v<T>) is_right = is_right && std::isfinite(value);
        if (is_right) {
          range = expected(value);
          if (range.empty()) return range;
        } else if constexpr (std::is_unsigned_v<T>) {
          range = fmt::format(" from 0 to {}", std::numeric_limits<T>::max());
        }
        return fmt::format("expected a {}number{}, got {}", std::is_integral_v<T> ? "whole " : "",
                           range, text);
      },
      ""));
}

template <class T>
struct NumberIn {
  using type = T;
};
template <class T>
struct NumberIn<std::optional<T>> {
  using type = T;
};
template <class T>
struct NumberIn<std::vector<T>> {
  using type = T;
};

// "a, b and c".
std::string listed(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? fmt::format(" {} ", last) : ", ";
    text += words[i];
  }
  return text;
}

// A group's own options: CLI11 gives every group a --help.
std::vector<const CLI::Option*> options_of(const CLI::App& group) {
  return group.get_options(
      [&](const CLI::Option* option) { return option != group.get_help_ptr(); });
}

// The help in 80 columns; a group of options under a line that says how many of them are wanted.
class HelpText : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kColumns - column_width_);
  }

  // A value that may be left out stands in brackets; what it is then, the text says.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_expected_min() > 0 || option->get_expected_max() == 0) {
      return CLI::Formatter::make_option_opts(option);
    }
    return " [" + option->get_type_name() + "]";
  }

  std::string make_description(const CLI::App* app) const override {
    return flowed(app->get_description()) + "\n";
  }

  std::string make_footer(const CLI::App* app) const override {
    return flowed(app->get_footer()) + "\n";
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(),
                             wrapped(command->get_description(), kColumns - column_width_),
                             column_width_);
    return out.str();
  }

  // Only groups come here: the help of all commands at once is not offered.
  std::string make_expanded(const CLI::App* group) const override {
    const bool one = group->get_require_option_min() == 1;
    return make_group(
        fmt::format("{} ({} of them)", group->get_group(), one ? "exactly one" : "at most one"),
        false, options_of(*group));
  }

 private:
  static constexpr std::size_t kColumns = 80;

  // Paragraphs as lines that fit; what is indented stays as it is.
  static std::string flowed(const std::string& text) {
    std::string out, paragraph;
    std::istringstream lines(text);
    const auto end_paragraph = [&] {
      if (!paragraph.empty()) out += wrapped(paragraph, kColumns) + "\n";
      paragraph.clear();
    };
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line.front() != ' ') {
        paragraph += line + " ";
        continue;
      }
      end_paragraph();
      out += line + "\n";
    }
    end_paragraph();
    if (!out.empty()) out.pop_back();
    return out;
  }

  static std::string wrapped(const std::string& text, std::size_t columns) {
    std::string lines;
    std::size_t used = 0;
    std::istringstream words(text);
    for (std::string word; words >> word; used += word.size()) {
      const bool fits = used + 1 + word.size() <= columns;
      if (used > 0) lines += fits ? ' ' : '\n';
      used = fits && used > 0 ? used + 1 : 0;
      lines += word;
    }
    return lines;
  }
};

const CLI::App& chosen_command(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  return commands.empty() ? app : chosen_command(*commands.front());
}

std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name()
                           : fmt::format("{} {}", path_of(*parent), command.get_name());
}

// What is wrong with how many options of a group were given; nothing if nothing is.
std::string fault_of_group(const CLI::App& group) {
  std::vector<std::string> names, given;
  for (const CLI::Option* option : options_of(group)) {
    const std::string name = "--" + option->get_lnames().front();
    names.push_back(name);
    if (option->count() > 0) given.push_back(name);
  }
  if (group.get_require_option_min() <= given.size() && given.size() <= 1) return "";
  return fmt::format("expected {} of {}, got {}",
                     group.get_require_option_min() == 1 ? "one" : "at most one",
                     listed(names, "and"), given.empty() ? "none" : listed(given, "and"));
}

// "--prompt: 1 required TEXT missing", "--prompt: At Most 1 required but received 2"; any other
// text as it is.
std::string count_fault(const std::string& text) {
  constexpr std::string_view kMissing = " missing", kTwice = ": At Most 1 required but received ";
  const std::string name = text.substr(0, text.find(':'));
  if (const std::size_t at = text.find(kTwice); at != std::string::npos) {
    return fmt::format("{}: expected once, got {} times", name, text.substr(at + kTwice.size()));
  }
  const std::string before = name + ": 1 required ";
  if (text.starts_with(before) && text.ends_with(kMissing)) {
    const std::string type = text.substr(before.size());
    return fmt::format("{}: expected {}, got nothing", name,
                       type.substr(0, type.size() - kMissing.size()));
  }
  return text;
}

// CLI11's own words leave out what was expected, and give surplus arguments back to front.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(app);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> surplus = app.remaining(true);
    for (const std::string& word : surplus) {
      if (word.starts_with("-")) return word + ": no such option";
    }
    if (!surplus.empty()) return surplus.front() + ": one argument too many";
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const std::vector<std::string> surplus = app.remaining(true);
    if (!surplus.empty() && command.get_require_subcommand_min() == 0) {
      return surplus.front() +
             (surplus.front().starts_with("-") ? ": no such option" : ": one argument too many");
    }
    if (command.get_require_subcommand_min() > 0) {
      const std::vector<std::string> words = app.remaining(true);
      return words.empty() ? "expected a command, got none" : words.front() + ": no such command";
    }
    for (const CLI::Option* option : command.get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      const bool is_flag = option->nonpositional();
      return fmt::format("{}expected {}, got nothing",
                         is_flag ? option->get_name() + ": " : std::string(),
                         option->get_type_name());
    }
    const auto is_group = [](const CLI::App* part) { return part->get_name().empty(); };
    for (const CLI::App* group : command.get_subcommands(is_group)) {
      const std::string fault = fault_of_group(*group);
      if (!fault.empty()) return fault;
    }
  }
  return count_fault(error.what());
}

}  // namespace

Flag Flag::type(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Flag Flag::required() const {
  option_->required();
  return *this;
}

Flag Flag::show_default() const {
  option_->capture_default_str();
  return *this;
}

// The help says nothing of ranges: "--batch INT:INT in [1 - 4096]" is no clearer than "--batch
// INT", and a value out of range is refused with the range.
Flag Flag::range(int64_t lowest, int64_t highest) const {
  check_number<int64_t>(option_, [=](int64_t value) {
    return lowest <= value && value <= highest ? ""
                                               : fmt::format(" from {} to {}", lowest, highest);
  });
  return *this;
}

Flag Flag::range(double lowest, double highest) const {
  check_number<double>(option_, [=](double value) {
    return lowest <= value && value <= highest ? ""
                                               : fmt::format(" from {} to {}", lowest, highest);
  });
  return *this;
}

Flag Flag::at_least(int64_t lowest) const {
  check_number<int64_t>(option_, [=](int64_t value) {
    return lowest <= value ? "" : fmt::format(" from {} on", lowest);
  });
  return *this;
}

Flag Flag::one_of(const std::vector<std::string>& values) const {
  parse_->choices[option_] = values;
  option_->check(CLI::Validator(
      [values](std::string& text) {
        if (std::find(values.begin(), values.end(), text) != values.end()) return std::string();
        return fmt::format("expected {}, got {}", listed(values, "or"), text);
      },
      ""));
  return *this;
}

Flag Flag::excludes(const Flag& other) const {
  option_->excludes(other.option_);
  return *this;
}

Flag Flag::check(std::function<std::string(const std::string&)> fault) const {
  option_->check(CLI::Validator([fault](std::string& text) { return fault(text); }, ""));
  return *this;
}

Flag Flag::replace(std::function<Replaced(const std::string&)> by) const {
  option_->transform(CLI::Validator(
      [by, parse = parse_](std::string& text) {
        Replaced replaced = by(text);
        text = replaced.value;
        if (!replaced.note.empty()) parse->notes.push_back(std::move(replaced.note));
        return std::string();
      },
      ""));
  return *this;
}

Flag Flag::repeatable() const {
  option_->expected(1)->take_all()->allow_extra_args(false);
  return *this;
}

Flag Flag::comma_separated() const {
  option_->delimiter(',');
  return *this;
}

Flag Flag::value_optional(const std::string& otherwise) const {
  option_->expected(0, 1)->default_str(otherwise);
  return *this;
}

template <typename T>
Flag CommandLine::option(const std::string& names, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(names, value, help);
  using Number = typename NumberIn<T>::type;
  if constexpr (std::is_arithmetic_v<Number>) {
    option->type_name(std::is_integral_v<Number> ? "N" : "X");
    check_number<Number>(option, [](Number) { return std::string(); });
  }
  return Flag(option, parse_);
}

template Flag CommandLine::option(const std::string&, int&, const std::string&);
template Flag CommandLine::option(const std::string&, int64_t&, const std::string&);
template Flag CommandLine::option(const std::string&, uint16_t&, const std::string&);
template Flag CommandLine::option(const std::string&, uint64_t&, const std::string&);
template Flag CommandLine::option(const std::string&, double&, const std::string&);
template Flag CommandLine::option(const std::string&, std::string&, const std::string&);
template Flag CommandLine::option(const std::string&, std::filesystem::path&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<uint64_t>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<int64_t>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<double>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<std::string>&,
                                  const std::string&);
template Flag CommandLine::option(const std::string&, std::vector<int64_t>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::vector<std::string>&,
                                  const std::string&);

Flag CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
  return {app_->add_flag(names, value, help), parse_};
}

CommandLine CommandLine::command(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help)->group("Commands"), parse_};
}

void CommandLine::needs_command() { app_->require_subcommand(1); }

CommandLine CommandLine::exactly_one(const std::string& name) {
  CLI::Option_group* group = app_->add_option_group(name);
  group->require_option(1);
  return {group, parse_};
}

CommandLine CommandLine::at_most_one(const std::string& name) {
  CLI::Option_group* group = app_->add_option_group(name);
  group->require_option(0, 1);
  return {group, parse_};
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

void CommandLine::runs(Action action) {
  app_->callback([parse = parse_, action = std::move(action)] { parse->chosen = action; });
}

namespace {

Given given_of(const CLI::App& app, const Parse& parse) {
  Given given{.words = parse.words, .flags = {}, .program = parse.program};
  for (const CLI::Option* option : options_of(app)) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const bool is_switch = option->get_items_expected_max() == 0;
    given.flags.push_back({.name = "--" + option->get_lnames().front(),
                           .type = is_switch ? "" : option->get_type_name(),
                           .values = is_switch ? std::vector<std::string>() : option->results()});
  }
  return given;
}

}  // namespace

void CommandLine::runs(std::function<int(const Given&)> action) {
  app_->callback([app = app_, parse = parse_, action = std::move(action)] {
    parse->chosen = [given = given_of(*app, *parse), action] { return action(given); };
  });
}

namespace {

void fill(CLI::App& app, const Program& program, Parse& parse) {
  app.description(program.help);
  app.name(program.name);
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", program.version, "print the version");
  app.footer(program.footer);
  const auto help = std::make_shared<HelpText>();
  help->label("SUBCOMMAND", "COMMAND");
  app.formatter(help);  // commands inherit it
  CommandLine line(&app, &parse);
  line.needs_command();
  for (const auto add : program.commands) add(line);
}

// A command's options, those of its groups too, in the order of the help.
std::vector<const CLI::Option*> all_options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options = options_of(command);
  for (const CLI::App* group : command.get_subcommands({})) {
    if (!group->get_name().empty()) continue;
    const std::vector<const CLI::Option*> inner = options_of(*group);
    options.insert(options.end(), inner.begin(), inner.end());
  }
  return options;
}

DescribedFlag describe(const CLI::Option& option, const Parse& parse) {
  DescribedFlag flag{.help = option.get_description()};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.is_argument = flag.names.empty();
  if (flag.is_argument) flag.names.push_back(option.get_name());
  if (option.get_items_expected_max() > 0) flag.type = option.get_type_name();
  flag.is_required = option.get_required();
  flag.has_optional_value =
      !flag.is_argument && flag.takes_value() && option.get_expected_min() == 0;
  if (const auto found = parse.choices.find(&option); found != parse.choices.end()) {
    flag.choices = found->second;
  }
  return flag;
}

DescribedCommand describe(const CLI::App& app, const Parse& parse, const std::string& before) {
  DescribedCommand command{
      .name = before + app.get_name(), .help = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : all_options_of(app)) {
    command.flags.push_back(describe(*option, parse));
  }
  for (const CLI::App* inner : app.get_subcommands({})) {
    if (inner->get_name().empty()) continue;
    const std::string path = app.get_parent() == nullptr ? "" : command.name + " ";
    command.commands.push_back(describe(*inner, parse, path));
  }
  return command;
}

}  // namespace

Description describe(const Program& program) {
  CLI::App app;
  Parse parse{.words = {}, .program = &program};
  fill(app, program, parse);
  return describe(app, parse, "");
}

Action parse_command_line(const Program& program, int argc, char** argv) {
  CLI::App app;
  Parse parse{.words = {argv, argv + argc}, .program = &program};
  fill(app, program, parse);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
  } catch (const CLI::ParseError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fail(ErrorKind::usage, "{}: no such command; {} --help lists them", argv[1], program.name);
    }
    fail(ErrorKind::usage, "{}\nSee {} --help.", usage_fault(app, e), path_of(chosen_command(app)));
  }
  const CLI::App& command = chosen_command(app);
  const CLI::Option* quiet = command.get_option_no_throw("--quiet");
  if (quiet == nullptr || quiet->count() == 0) {
    for (const std::string& note : parse.notes) log_info("{}", note);
  }
  return parse.chosen;
}

Given parse_words(std::vector<std::string> words, const std::function<void(CommandLine&)>& add) {
  CLI::App app;
  Parse parse{.words = words};
  CommandLine line(&app, &parse);
  add(line);
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
  try {
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    fail(ErrorKind::usage, "{}", usage_fault(app, e));
  }
  return given_of(app, parse);
}

void parse_flags(const std::vector<Given::Flag>& flags,
                 const std::function<void(CommandLine&)>& add) {
  std::vector<std::string> words;
  for (const Given::Flag& flag : flags) {
    if (flag.type.empty()) words.push_back(flag.name);
    for (const std::string& value : flag.values) words.push_back(flag.name + "=" + value);
  }
  parse_words(std::move(words), add);
}

}  // namespace dsmoe::app

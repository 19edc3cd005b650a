// CLI11 behind an interface of ours.
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "output.h"

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
  option_->check(CLI::IsMember(values));
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

Flag Flag::repeatable() const {
  option_->expected(1)->take_all();
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
    check_number<Number>(option, [](Number) { return std::string(); });
  }
  return Flag(option);
}

template Flag CommandLine::option(const std::string&, int&, const std::string&);
template Flag CommandLine::option(const std::string&, int64_t&, const std::string&);
template Flag CommandLine::option(const std::string&, uint16_t&, const std::string&);
template Flag CommandLine::option(const std::string&, uint64_t&, const std::string&);
template Flag CommandLine::option(const std::string&, double&, const std::string&);
template Flag CommandLine::option(const std::string&, std::string&, const std::string&);
template Flag CommandLine::option(const std::string&, std::filesystem::path&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<uint64_t>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::optional<std::string>&,
                                  const std::string&);
template Flag CommandLine::option(const std::string&, std::vector<int64_t>&, const std::string&);
template Flag CommandLine::option(const std::string&, std::vector<std::string>&,
                                  const std::string&);

Flag CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
  return Flag(app_->add_flag(names, value, help));
}

CommandLine CommandLine::command(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help), chosen_};
}

void CommandLine::needs_command() { app_->require_subcommand(1); }

CommandLine CommandLine::exactly_one(const std::string& name) {
  CLI::Option_group* group = app_->add_option_group(name);
  group->require_option(1);
  return {group, chosen_};
}

CommandLine CommandLine::at_most_one(const std::string& name) {
  CLI::Option_group* group = app_->add_option_group(name);
  group->require_option(0, 1);
  return {group, chosen_};
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

void CommandLine::runs(Action action) {
  app_->callback([chosen = chosen_, action = std::move(action)] { *chosen = action; });
}

Action parse_command_line(const Program& program, int argc, char** argv) {
  CLI::App app{program.help, program.name};
  app.set_version_flag("--version", program.version);
  app.footer(program.footer);
  Action chosen;
  CommandLine line(&app, &chosen);
  line.needs_command();
  for (const auto add : program.commands) add(line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
  } catch (const CLI::ParseError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fail(ErrorKind::usage, "{}: no such command; {} --help lists them", argv[1], program.name);
    }
    fail(ErrorKind::usage, "{}\nSee {} --help, or {} COMMAND --help.", e.what(), program.name,
         program.name);
  }
  return chosen;
}

}  // namespace dsmoe::app

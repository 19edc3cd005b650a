// The man page: one section per command.
#include <fmt/core.h>

#include <sstream>

#include "commands/description.h"

namespace dsmoe::app {
namespace {

// A line must not begin with a dot or a quote, and a hyphen is a minus that can be copied.
std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    const bool begins = safe.empty() || safe.back() == '\n';
    if (begins && (c == '.' || c == '\'')) safe += "\\&";
    if (c == '\\') {
      safe += "\\e";
    } else if (c == '-') {
      safe += "\\-";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

// Paragraphs are filled; what is indented stays as it is.
std::string paragraphs(const std::string& text) {
  std::string out;
  bool as_it_is = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_indented = line.starts_with(" ");
    if (is_indented != as_it_is) out += is_indented ? ".PP\n.nf\n" : ".fi\n";
    as_it_is = is_indented;
    out += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return out + (as_it_is ? ".fi\n" : "");
}

std::string flag_text(const DescribedFlag& flag) {
  std::string names;
  for (const std::string& name : flag.names) {
    names += (names.empty() ? "" : ", ") + std::string("\\fB") + escaped(name) + "\\fR";
  }
  if (flag.is_argument) names = "\\fI" + escaped(flag.type) + "\\fR";
  if (!flag.is_argument && flag.takes_value()) {
    const std::string value = "\\fI" + escaped(flag.type) + "\\fR";
    names += flag.has_optional_value ? " [" + value + "]" : " " + value;
  }
  std::string help = escaped(flag.help);
  if (flag.is_required) help += help.empty() ? "required" : " (required)";
  return fmt::format(".TP\n{}\n{}\n", names, help);
}

std::string command_text(const std::string& program, const DescribedCommand& command) {
  std::string text = fmt::format(".SS \"{} {}\"\n{}\n", escaped(program), escaped(command.name),
                                 escaped(command.help));
  for (const DescribedFlag& flag : command.flags) text += flag_text(flag);
  if (!command.footer.empty()) text += ".PP\n" + paragraphs(command.footer);
  for (const DescribedCommand& inner : command.commands) text += command_text(program, inner);
  return text;
}

}  // namespace

std::string man_page(const Description& program, const std::string& version) {
  const std::size_t colon = program.help.find(": ");
  const std::string brief = program.help.substr(colon + 2, program.help.find('.') - colon - 2);
  std::string text = fmt::format(
      ".TH {} 1 \"\" \"{}\" \"User commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n"
      ".I command\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n{}",
      upper(program.name), escaped(version), program.name, escaped(brief), program.name,
      paragraphs(program.help));
  text += ".PP\n" + paragraphs(program.footer) + ".SH COMMANDS\n";
  for (const DescribedCommand& command : program.commands) {
    text += command_text(program.name, command);
  }
  return text +
         ".SH ENVIRONMENT\n"
         ".TP\n\\fBDSMOE_LOG\\fR\nquiet, warning, info or debug: how much is told on standard "
         "error\n"
         ".TP\n\\fBDSMOE_ISA\\fR\nref, v3, v4, v4_bf16 or amx: the kernels that are used; all give "
         "the same bits\n"
         ".TP\n\\fBNO_COLOR\\fR\nset to anything: no colours\n";
}

}  // namespace dsmoe::app

// Small programs of the demo corpus, each with what it prints in its last line.
#include <algorithm>

#include "base/error.h"
#include "data/demo_domains.h"

namespace dsmoe::data {
namespace {

struct Function {
  std::string name, before, after;  // the body is before + argument + after
  int (*apply)(int);
};
const std::vector<Function> kFunctions = {
    {"double", "2 * ", "", [](int x) { return 2 * x; }},
    {"triple", "3 * ", "", [](int x) { return 3 * x; }},
    {"next", "", " + 1", [](int x) { return x + 1; }},
    {"tenfold", "10 * ", "", [](int x) { return 10 * x; }},
};
using Words = std::vector<std::string>;
const Words kVariables = {"n", "x", "y", "k"};

void write_function_program(Author& author, const Function& function) {
  const std::string& variable = kVariables[author.pick(kVariables)];
  author.write("):\n    return " + function.before + variable + function.after + "\n\nprint(" +
               function.name + "(");
  const int first = author.pick_number(1, 9);
  author.write("), " + function.name + "(");
  const int second = author.pick_number(1, 9);
  author.write(fmt::format("))\n# {} {}\n", function.apply(first), function.apply(second)));
}

void write_loop_program(Author& author) {
  const std::string& variable = kVariables[author.pick(kVariables)];
  author.write("):\n    for i in range(" + variable + "):\n        print(i)\n\ncount(");
  const int end = author.pick_number(2, 9);
  std::string printed = ")\n#";
  for (int i = 0; i < end; ++i) printed += fmt::format(" {}", i);
  author.write(printed + "\n");
}

void write_comparison_program(Author& author, std::string_view name, std::string_view sign) {
  const std::string& left = kVariables[author.pick(kVariables)];
  author.write(", ");
  Words others = kVariables;
  std::erase(others, left);
  const std::string& right = others[author.pick(others)];
  author.write(
      fmt::format("):\n    if {0} {1} {2}:\n        return {0}\n    return {2}\n\nprint({3}(", left,
                  sign, right, name));
  const int a = author.pick_number(0, 9);
  author.write(", ");
  const int b = author.pick_number(0, 9);
  author.write(fmt::format("))\n# {}\n", sign == ">" ? std::max(a, b) : std::min(a, b)));
}

}  // namespace

void write_program(Author& author) {
  Words openings;
  for (const Function& function : kFunctions) openings.push_back(function.name + "(");
  const size_t num_functions = openings.size();
  openings.insert(openings.end(), {"count(", "larger(", "smaller("});
  const size_t kind = author.pick(openings);
  if (kind < num_functions) return write_function_program(author, kFunctions[kind]);
  if (kind == num_functions) return write_loop_program(author);
  if (kind == num_functions + 1) return write_comparison_program(author, "larger", ">");
  write_comparison_program(author, "smaller", "<");
}

}  // namespace dsmoe::data

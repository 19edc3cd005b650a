// dsmoe._engine: the compiled half of the Python package.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/engine_version.h"
#include "base/log.h"
#include "base/map_fault.h"
#include "binding.h"
#include "commands/version.h"
#include "kernels/table.h"
#include "program.h"

namespace dsmoe::python {
namespace {

// A library is quiet; DSMOE_LOG and set_log_level() say otherwise.
void set_first_log_level() {
  const char* word = std::getenv("DSMOE_LOG");
  if (word == nullptr || *word == '\0') set_log_level(LogLevel::warning);
}

int run_command_line(std::vector<std::string> words) {
  const nb::gil_scoped_release release;
  const char* word = std::getenv("DSMOE_LOG");
  if (word == nullptr || *word == '\0') set_log_level(LogLevel::info);
  end_on_map_faults();
  std::vector<char*> arguments;
  for (std::string& one : words) arguments.push_back(one.data());
  arguments.push_back(nullptr);
  const int code = app::run_program(static_cast<int>(words.size()), arguments.data());
  flush_log();
  return code;
}

}  // namespace

NB_MODULE(_engine, module) {
  module.doc() = "The compiled half of dsmoe; use the package.";
  module.attr("__version__") = app::version();
  module.attr("commit") = app::commit();
  module.attr("engine_version") = kEngineVersion;
  set_first_log_level();
  bind_errors(module);
  bind_model(module);
  bind_training(module);
  bind_layer(module);
  module.def(
      "kernels", [] { return std::string(kernels::select_cpu_table().name); },
      "The kernels that this processor runs: ref, v3, v4, v4_bf16 or amx.");
  module.def(
      "set_log_level",
      [](const std::string& word) { set_log_level(parse_log_level(word, "level")); },
      nb::arg("level"), "What is said on stderr: quiet, warning (the default), info or debug.");
  module.def("run_command_line", &run_command_line, nb::arg("words"),
             "Runs the command that the words name, as the program dsmoe does; its exit code.");
}

}  // namespace dsmoe::python

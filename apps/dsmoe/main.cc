// The dsmoe command: parses the command line and runs one subcommand.
#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "base/error.h"
#include "command.h"
#include "output.h"

namespace dsmoe::app {
namespace {

int exit_code(ErrorKind kind) { return kind == ErrorKind::usage ? kWrongUsage : kFailed; }

// "--batch INT:INT in [1 - 1099511627776]" says no more than "--batch INT" to a reader; a value out
// of range is refused with the range.
void hide_ranges(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    for (int i = 0;; ++i) {
      CLI::Validator* validator = nullptr;
      try {
        validator = option->get_validator(i);
      } catch (const CLI::OptionNotFound&) {
        break;  // there is no other way to learn how many there are
      }
      const std::string text = validator->get_description();
      if (text == "POSITIVE" || text.find(" in [") != std::string::npos) validator->description("");
    }
  }
  for (CLI::App* command : app.get_subcommands({})) hide_ranges(*command);
}

int run(int argc, char** argv) {
  CLI::App app{
      "dsmoe: DeepSeekMoE language models, trained, evaluated and served by one engine.\n"
      "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage,\n"
      "130 interrupted.",
      "dsmoe"};
  app.set_version_flag("--version", std::string("dsmoe ") + DSMOE_VERSION);
  app.require_subcommand(1);
  app.footer("dsmoe COMMAND --help explains a command.\n\nExample:\n  dsmoe info my-model/");
  Action action;
  add_demo(app, action);
  add_info(app, action);
  add_logits(app, action);
  add_eval(app, action);
  add_generate(app, action);
  add_chat(app, action);
  add_train(app, action);
  add_quantize(app, action);
  add_serve(app, action);
  add_compare(app, action);
  add_probe(app, action);
  add_report(app, action);
  add_bench(app, action);
  add_tokenizer(app, action);
  hide_ranges(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
    flush_output();
    return kDone;
  } catch (const CLI::ParseError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fmt::print(stderr, "dsmoe: {}: no such command; dsmoe --help lists them\n", argv[1]);
      return kWrongUsage;
    }
    fmt::print(stderr, "dsmoe: {}\nSee dsmoe --help, or dsmoe COMMAND --help.\n", e.what());
    return kWrongUsage;
  }
  const int code = action();
  flush_output();
  return code;
}

}  // namespace
}  // namespace dsmoe::app

int main(int argc, char** argv) {
  try {
    return dsmoe::app::run(argc, argv);
  } catch (const dsmoe::Error& e) {
    fmt::print(stderr, "dsmoe: {}\n", e.what());
    return dsmoe::app::exit_code(e.kind());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "dsmoe: out of memory\n");
  } catch (const std::exception& e) {
    fmt::print(stderr, "dsmoe: unexpected error, please report it: {}\n", e.what());
  }
  return dsmoe::app::kFailed;
}

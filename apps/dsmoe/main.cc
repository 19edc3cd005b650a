// The dsmoe command: parses the command line and runs one subcommand.
#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "base/error.h"
#include "cmd_tokenizer.h"
#include "command.h"
#include "output.h"

namespace dsmoe::app {
namespace {

int exit_code(ErrorKind kind) { return kind == ErrorKind::usage ? kWrongUsage : kFailed; }

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
  add_bench(app, action);
  add_tokenizer_command(app);  // does its work while the command line is parsed
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
    flush_output();
    return kDone;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "dsmoe: {}\nSee dsmoe --help, or dsmoe COMMAND --help.\n", e.what());
    return kWrongUsage;
  }
  const int code = action ? action() : kDone;
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

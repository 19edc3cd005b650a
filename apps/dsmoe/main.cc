// The dsmoe command: parses the command line and runs one subcommand.
#include <cstdio>
#include <filesystem>
#include <new>

#include "base/error.h"
#include "base/map_fault.h"
#include "command.h"
#include "output.h"

namespace dsmoe::app {
namespace {

int exit_code(ErrorKind kind) { return kind == ErrorKind::usage ? kWrongUsage : kFailed; }

const Program kProgram{
    .name = "dsmoe",
    .version = "dsmoe " DSMOE_VERSION,
    .help =
        "dsmoe: DeepSeekMoE language models, trained, evaluated and served by one engine.\n"
        "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage,\n"
        "130 interrupted.",
    .footer =
        "dsmoe COMMAND --help explains a command.\n\nExamples:\n  dsmoe demo\n"
        "  dsmoe info my-model/",
    .commands = {add_demo, add_info, add_logits, add_eval, add_generate, add_chat, add_train,
                 add_quantize, add_serve, add_compare, add_probe, add_report, add_bench,
                 add_tokenizer}};

int run(int argc, char** argv) {
  const Action action = parse_command_line(kProgram, argc, argv);
  const int code = action ? action() : kDone;
  flush_output();
  return code;
}

}  // namespace
}  // namespace dsmoe::app

// Not by fmt, which throws when nobody takes the message.
int main(int argc, char** argv) {
  dsmoe::end_on_map_faults();
  try {
    return dsmoe::app::run(argc, argv);
  } catch (const dsmoe::Error& e) {
    std::fprintf(stderr, "dsmoe: %s\n", e.what());
    return dsmoe::app::exit_code(e.kind());
  } catch (const std::filesystem::filesystem_error& e) {
    std::fprintf(stderr, "dsmoe: cannot examine %s: %s\n", e.path1().c_str(),
                 e.code().message().c_str());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "dsmoe: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dsmoe: unexpected error, please report it: %s\n", e.what());
  }
  return dsmoe::app::kFailed;
}

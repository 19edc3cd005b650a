// Parses the command line and runs one subcommand.
#include "program.h"

#include <filesystem>
#include <new>
#include <string>

#include "base/engine_version.h"
#include "base/error.h"
#include "base/log.h"
#include "commands/command.h"
#include "commands/version.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

int exit_code(ErrorKind kind) { return kind == ErrorKind::usage ? kWrongUsage : kFailed; }

const Program kProgram{
    .name = "dsmoe",
    .version = "dsmoe " + version() + " (" + commit() + "), engine version " +
               std::to_string(kEngineVersion),
    .help =
        "dsmoe: DeepSeekMoE language models, trained, evaluated and served by one engine.\n"
        "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage,\n"
        "130 interrupted.",
    .footer =
        "dsmoe COMMAND --help explains a command.\n\nExamples:\n  dsmoe demo\n"
        "  dsmoe info my-model/",
    .commands = {add_demo, add_info, add_logits, add_eval, add_generate, add_chat, add_train,
                 add_quantize, add_convert, add_serve, add_compare, add_probe, add_report,
                 add_bench, add_tokenizer, add_completion, add_man}};

int run(int argc, char** argv) {
  const Action action = parse_command_line(kProgram, argc, argv);
  const int code = action ? action() : kDone;
  flush_output();
  return code;
}

// What ended the program. Whether anybody takes the message does not change its exit code.
int say(const std::string& text, int code) {
  write_message("dsmoe: " + text + "\n");
  return code;
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& e) {
    return say(e.what(), exit_code(e.kind()));
  } catch (const std::filesystem::filesystem_error& e) {
    return say("cannot examine " + e.path1().string() + ": " + e.code().message(), kFailed);
  } catch (const std::bad_alloc&) {
    write_message("dsmoe: out of memory\n");
    return kFailed;
  } catch (const std::exception& e) {
    return say(std::string("unexpected error, please report it: ") + e.what(), kFailed);
  }
}

}  // namespace dsmoe::app

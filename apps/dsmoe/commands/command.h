// The subcommands, one per file cmd_<name>.cc, and their exit codes.
#pragma once

#include "commands/command_line.h"

namespace dsmoe::app {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kInterrupted = 130;

// Each adds its subcommand with flags, help and example. Errors are thrown and caught in main only.
void add_demo(CommandLine& app);
void add_info(CommandLine& app);
void add_logits(CommandLine& app);
void add_eval(CommandLine& app);
void add_generate(CommandLine& app);
void add_chat(CommandLine& app);
void add_serve(CommandLine& app);
void add_train(CommandLine& app);
void add_quantize(CommandLine& app);
void add_convert(CommandLine& app);
void add_compare(CommandLine& app);
void add_probe(CommandLine& app);
void add_report(CommandLine& app);
void add_bench(CommandLine& app);
void add_tokenizer(CommandLine& app);
void add_completion(CommandLine& app);
void add_man(CommandLine& app);

}  // namespace dsmoe::app

// What every subcommand is made of: flags parsed into a struct, and an action that main runs once.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace dsmoe::app {

// Returns the exit code. Set while the command line is parsed, run afterwards; errors are thrown
// and caught in main only.
using Action = std::function<int()>;

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kInterrupted = 130;

// One per file cmd_<name>.cc: adds the subcommand with its flags, help and example.
void add_demo(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_logits(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_probe(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_tokenizer(CLI::App& app, Action& action);

}  // namespace dsmoe::app

// dsmoe tokenizer: train, encode, decode.
#pragma once

#include <CLI/CLI.hpp>

namespace dsmoe {

// Adds the command to the program; its callbacks do the work and throw Error.
void add_tokenizer_command(CLI::App& app);

}  // namespace dsmoe

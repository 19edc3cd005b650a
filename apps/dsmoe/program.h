// The dsmoe command from its arguments to its exit code.
#pragma once

namespace dsmoe::app {

// Parses the arguments, runs the command they name, and says on stderr what ended it.
int run_program(int argc, char** argv);

}  // namespace dsmoe::app

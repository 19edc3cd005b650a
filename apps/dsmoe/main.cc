// The dsmoe command: parses the command line and runs one subcommand.
#include <cstdio>

#include "base/error.h"

int main() {
  try {
    dsmoe::fail(dsmoe::ErrorKind::usage, "no command given; see dsmoe --help");
  } catch (const dsmoe::Error& e) {
    std::fprintf(stderr, "dsmoe: %s\n", e.what());
    return e.kind() == dsmoe::ErrorKind::usage ? 2 : 1;
  }
}

// The dsmoe program: what belongs to a process of its own, around its one command.
#include <fcntl.h>

#include <cerrno>

#include "base/log.h"
#include "base/map_fault.h"
#include "program.h"

namespace {

// Where stdin, stdout or stderr is closed, the next file that is opened would take its number, and
// what is meant for a reader would go into it. Reading gives nothing then, and writing fails.
void fill_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  dsmoe::end_on_map_faults();
  const int code = dsmoe::app::run_program(argc, argv);
  dsmoe::flush_log();
  return code;
}

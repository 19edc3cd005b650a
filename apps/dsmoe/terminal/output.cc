// Checked writing to stdout.
#include "terminal/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/background_writer.h"
#include "base/error.h"

namespace dsmoe::app {
namespace {

BackgroundWriter* background = nullptr;  // never destroyed: its write may never return

}  // namespace

void output_in_background() { background = new BackgroundWriter(STDOUT_FILENO); }

void write_output(std::string_view text) {
  if (background != nullptr) return background->write(text);
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail_errno("cannot write to standard output");
  }
}

void flush_output() {
  if (background != nullptr) return background->flush();
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fail_errno("cannot write to standard output");
  }
}

void print_json_line(const OrderedJson& value) {
  write_output(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

void print_json(const OrderedJson& value) {
  write_output(value.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

bool stdout_has_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return (no_colour == nullptr || *no_colour == '\0') && ::isatty(STDOUT_FILENO) == 1;
}

int terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0) {
    return size.ws_col;
  }
  return 100;
}

}  // namespace dsmoe::app

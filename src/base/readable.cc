// Checked writing to stdout, and numbers for people.
#include "output.h"

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

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 6) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_number(double value) {
  const char* units[] = {"", " K", " M", " G", " T", " P", " E"};
  int unit = 0;
  while (value >= 1000 && unit < 6) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}{}", value, units[unit]);
}

std::string without_controls(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // C1 controls are two bytes in UTF-8: 0xC2 and 0x80 to 0x9F.
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() &&
                       static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                       static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool is_c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    if (is_c0 || is_c1) {
      safe += "\xEF\xBF\xBD";
      i += is_c1 ? 1 : 0;
    } else {
      safe += text[i];
    }
  }
  return safe;
}

std::string for_terminal(std::string_view text) {
  return ::isatty(STDOUT_FILENO) == 1 ? without_controls(text) : std::string(text);
}

bool stdout_has_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return (no_colour == nullptr || *no_colour == '\0') && ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace dsmoe::app

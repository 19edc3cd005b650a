// Results on stdout, with every write checked: a full disk is an error, not a short answer.
#pragma once

#include <fmt/core.h>

#include <string_view>

#include "base/json.h"

namespace dsmoe::app {

// Buffered; throws Error(io) when stdout cannot take it.
void write_output(std::string_view text);
void flush_output();
// From now on as log_in_background() does for stderr: a server goes on whoever reads its output.
void output_in_background();

template <class... Args>
void print(fmt::format_string<Args...> text, Args&&... args) {
  write_output(fmt::format(text, std::forward<Args>(args)...));
}

// One line; broken UTF-8 becomes U+FFFD.
void print_json_line(const OrderedJson& value);
// Indented, for one result.
void print_json(const OrderedJson& value);

// Terminal colours: only when stdout is a terminal and NO_COLOR is unset or empty.
bool stdout_has_colour();

// The width of the terminal on stdout; 100 where it is none.
int terminal_columns();

}  // namespace dsmoe::app

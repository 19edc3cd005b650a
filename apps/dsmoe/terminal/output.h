// Results on stdout, with every write checked: a full disk is an error, not a short answer.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dsmoe::app {

using OrderedJson = nlohmann::ordered_json;

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

std::string with_commas(int64_t value);  // "16,375,728,128"
std::string human_bytes(double bytes);   // "30.5 GiB"
std::string human_number(double value);  // "5.65 G": powers of 1000

// What a model says may hold escape sequences: on a terminal, control characters other than tab and
// newline become U+FFFD; elsewhere the bytes stay as they are.
std::string for_terminal(std::string_view text);
std::string without_controls(std::string_view text);

// Terminal colours: only when stdout is a terminal and NO_COLOR is unset or empty.
bool stdout_has_colour();

}  // namespace dsmoe::app

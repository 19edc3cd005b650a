// UTF-8 text seen as Python's str sees it: code points, Unicode white space, line breaks, printable
// characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::text::jinja {

// All functions below expect valid UTF-8 (base/utf8.h) and keep it valid.

std::size_t count_code_points(std::string_view text);

bool is_ascii(std::string_view text);
bool is_space(char32_t c);       // str.isspace
bool is_line_break(char32_t c);  // where str.splitlines cuts
// str.isprintable, except that code points Unicode has not assigned count as printable: which
// ones those are changes with every Python version.
bool is_printable(char32_t c);

enum class Side { left, right, both };
// Strips white space, or the code points in `chars`.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

// str.split / str.rsplit without a separator; max_splits < 0: no limit.
std::vector<std::string_view> split_white_space(std::string_view text, std::int64_t max_splits);
// str.split / str.rsplit with one; `separator` is not empty.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits, Side from);
std::vector<std::string_view> split_lines(std::string_view text);

// str.replace; max_replacements < 0: all. An empty `old_text` matches between all code points.
std::string replace(std::string_view text, std::string_view old_text, std::string_view new_text,
                    std::int64_t max_replacements);

// Escapes for a Python literal (repr) and for JSON.
std::string python_repr(std::string_view text);
enum class JsonEscape { controls, non_ascii };
void append_json_string(std::string& out, std::string_view text, JsonEscape escape);

// repr(float): the shortest decimal that reads back, in Python's notation.
std::string python_repr(double value);

}  // namespace dsmoe::text::jinja

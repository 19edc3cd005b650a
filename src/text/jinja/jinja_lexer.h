// Template text -> tokens, with white space control as jinja2 does it under trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/jinja_run.h"

namespace dsmoe::text::jinja {

enum class TokenKind {
  data,  // text outside of tags, already trimmed
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,  // text: the value, escapes resolved
  integer,
  floating,
  op,  // text: the operator
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  std::int64_t integer = 0;
  double floating = 0;
  Position at;
};

// The last token is `end`. Comments and raw blocks are resolved here. Throws Error(input) that
// starts with `what` and gives line and column.
std::vector<Token> lex(std::string_view source, std::string_view what);

}  // namespace dsmoe::text::jinja

// Grammars in llama.cpp's notation (GBNF) as rules.
#pragma once

#include <string>
#include <string_view>

#include "constrain/nfa.h"

namespace dsmoe::constrain {

// Everything that `root` may be. NAME ::= literals, classes, `.`, names of rules, groups,
// alternatives, * + ? {m,n}; comments from # to the end of a line. Rules may refer to each other
// and to themselves, but not begin with themselves. Throws Error(input) that begins with `name` and
// gives the line.
void add_grammar(Nfa& nfa, int32_t from, std::string_view text, const std::string& name,
                 int32_t to);

}  // namespace dsmoe::constrain

// Translates the Oniguruma patterns of tokenizer.json files into PCRE2 patterns of the same
// meaning.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::text {

// Which code points the classes know: those of PCRE2's own tables, or also the ones of unicode.h.
enum class UnicodeRange { pcre2, recent };

// The result is for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with line feed as the only newline, and
// has no capturing groups. What differs between the two engines is spelled out: \s, \w, \h, \b, ^
// and $, (?m), isolated options, script names. What cannot be expressed (&&, back references, \K,
// \G, POSIX classes with other members) is refused by name: Error(input) whose text starts with
// `what`.
//
// An alternative that starts with a repeated class, like \s+$, is tried once per run of that class
// and not once per character of it: this keeps a failing search over a long run linear, and finds
// the same matches.
std::string translate_oniguruma(std::string_view pattern, std::string_view what,
                                UnicodeRange range);

}  // namespace dsmoe::text

// JSON Schema as rules: the part of it that can be written without knowing what comes later.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "constrain/nfa.h"

namespace dsmoe::constrain {

// The JSON texts of values that the schema allows: not all, but whatever is written is allowed.
// Members come in the order of `properties`, each at most once. Throws Error(input) that begins
// with `name` and the path of what is not supported.
void add_schema(Nfa& nfa, int32_t from, const OrderedJson& schema, const std::string& name,
                int32_t to);

}  // namespace dsmoe::constrain

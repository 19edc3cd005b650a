// Runs a parsed template: variables in, text out, within limits.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja_ast.h"

namespace dsmoe::text::jinja {

using Variables = nlohmann::ordered_json;  // an object

// Throws Error(input) when the template fails, raises, or exceeds `limits`. `steps_used`, if given,
// is set either way.
std::string render(const Template& source, const Variables& variables, const Limits& limits = {},
                   std::int64_t* steps_used = nullptr);

}  // namespace dsmoe::text::jinja

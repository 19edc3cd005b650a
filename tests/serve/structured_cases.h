// Constraints that strangers may send, and the status each must get.
#pragma once

#include <vector>

#include "serve/abuse_cases.h"

namespace dsmoe::testing {

// For /v1/completions. Most are refused; some are large or hard, and have an answer.
std::vector<BodyCase> structured_cases();

// Grammars, oneOf, multipleOf, banned words and allowed tokens, for /v1/completions.
std::vector<BodyCase> field_cases();
// Tools and turns, for /v1/chat/completions.
std::vector<BodyCase> tool_cases();

}  // namespace dsmoe::testing

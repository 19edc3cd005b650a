// Fields of other servers that would change the answer: refused by name while they are not
// supported.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace dsmoe::serve {

struct UnsupportedField {
  const char* name;
  std::vector<Json> harmless;  // values, beside null, that ask for what is done anyway
};

// Of any completion, of one endpoint, of a message of a chat, of /tokenize.
std::span<const UnsupportedField> unsupported_fields();
std::span<const UnsupportedField> unsupported_chat_fields();
std::span<const UnsupportedField> unsupported_prompt_fields();
std::span<const UnsupportedField> unsupported_message_fields();
std::span<const UnsupportedField> unsupported_tokenize_fields();

// Throws ApiError(400) about the first of them in `object` with a value that is not harmless; its
// name is given as `prefix` + name.
void refuse_unsupported(const Json& object, std::span<const UnsupportedField> fields,
                        const std::string& prefix = "");

// unsupported_fields() in a body of another form than a chat's, but for those that have a meaning
// in it; and what only a chat's answer can show.
void refuse_unsupported_in_dialect(const Json& object, std::initializer_list<std::string_view> own);

}  // namespace dsmoe::serve

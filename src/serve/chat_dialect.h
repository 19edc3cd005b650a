// Requests of /v1/responses and /v1/messages, said as requests of /v1/chat/completions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"

namespace dsmoe::serve {

struct TranslatedChat {
  std::string body;      // of a chat completion
  OrderedJson repeated;  // fields that the answer says again; null: none
};

// Throw ApiError(400) that names the field of the request as it was sent. What a chat has too (how
// tokens are drawn) is checked there.
TranslatedChat translate_responses(std::string_view body);
enum class MessagesFor { an_answer, a_count };
TranslatedChat translate_messages(std::string_view body, MessagesFor purpose);

// Copies what a chat and a body of another form have under one name.
void copy_common_fields(const OrderedJson& from, OrderedJson& to);

// The text of a string, or of a list of parts whose type is one of `types`.
std::string text_of_parts(const Json& content, const std::string& name,
                          std::initializer_list<std::string_view> types);

}  // namespace dsmoe::serve

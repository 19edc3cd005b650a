// A chat's messages -> the text its answer follows, through the model's template.
#pragma once

#include <string>

#include "serve/chat_request.h"
#include "serve/served_model.h"

namespace dsmoe::serve {

// Throws ApiError(400) where the model has no template, or its template refuses these messages.
std::string render_chat(const ChatRequest& chat, const ServedModel& model);

}  // namespace dsmoe::serve

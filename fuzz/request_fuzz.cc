// Completion requests from strangers: any bytes may be refused, none may crash, hang or exhaust
// memory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "serve/api_error.h"
#include "serve/completion_request.h"
#include "serve/http_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsmoe::serve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::completions, Endpoint::chat}) {
    try {
      const CompletionRequest request = parse_completion(text, endpoint, {});
      if (request.num_choices < 1 || request.num_choices > kMaxChoices) __builtin_trap();
      if (request.prompts.empty() == (endpoint == Endpoint::completions)) __builtin_trap();
    } catch (const ApiError& error) {
      if (error.status() != 400) __builtin_trap();
      // JSON whatever the body held: bytes of it may be quoted in the message.
      if (!dsmoe::Json::accept(to_text(error_body(error)))) __builtin_trap();
    }
  }
  HttpRequest target;
  parse_target(text, target);
  return 0;
}

// Bodies that strangers may send to the completion routes, and the status each must get.
#pragma once

#include <string>
#include <vector>

namespace dsmoe::testing {

struct BodyCase {
  const char* name;
  std::string body;
  int status;
  const char* param = "";  // of the error; "": not looked at
};

std::vector<BodyCase> completion_cases();  // for /v1/completions
std::vector<BodyCase> chat_cases();        // for /v1/chat/completions
// Every field of both routes with values of every kind that is not its own.
std::vector<BodyCase> kind_cases();

// Fields of vLLM, llama.cpp, transformers ...: a body up to its last brace gets each of them.
std::vector<BodyCase> other_server_cases(const std::string& body_without_end);

}  // namespace dsmoe::testing

// Thoughts of an answer in a field of their own: plain, streamed, and not where a template knows
// nothing of them.
#include <gtest/gtest.h>

#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

constexpr const char* kOpen =
    "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}";

// The answer is the text, whatever the weights say.
Json asked(const std::string& answer, const Json& more = Json::object()) {
  Json body{{"messages", {{{"role", "user"}, {"content", "The cat?"}}}},
            {"structured_outputs", {{"choice", {answer}}}},
            {"max_tokens", 200}};
  body.update(more);
  return body;
}

Json message_of(SmallServer& server, const Json& body) {
  const Answer answer = server.chat(body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json()["choices"][0]["message"];
}

TEST(ServedReasoning, ComesApart) {
  set_log_level(LogLevel::warning);
  SmallServer server({.chat_template = kOpen});
  const Json message = message_of(server, asked("\nThe cat sat.\n</think>\n\nOn the mat."));
  EXPECT_EQ(message["reasoning_content"], "The cat sat.");
  EXPECT_EQ(message["content"], "On the mat.");

  // The prompt closed the part: the same text is an answer.
  const Json closed = message_of(
      server, asked("On the mat.", {{"chat_template_kwargs", {{"enable_thinking", false}}}}));
  EXPECT_EQ(closed["content"], "On the mat.");
  EXPECT_FALSE(closed.contains("reasoning_content"));

  // An answer that never came to an end of its thoughts.
  const Json cut = message_of(server, asked("The cat sat on the mat", {{"max_tokens", 200}}));
  EXPECT_EQ(cut["reasoning_content"], "The cat sat on the mat");
  EXPECT_EQ(cut["content"], "");
}

TEST(ServedReasoning, IsStreamed) {
  SmallServer server({.chat_template = kOpen});
  const Answer answer =
      server.chat(asked("The cat < the dog.\n</think>\n\nOn the mat.", {{"stream", true}}));
  EXPECT_EQ(answer.status, 200) << answer.body;
  std::string thoughts, said;
  bool has_said = false;
  for (std::size_t at = 0; (at = answer.body.find("data: {", at)) != std::string::npos;) {
    const std::size_t end = answer.body.find('\n', at);
    const Json delta = Json::parse(answer.body.substr(at + 6, end - at - 6))["choices"][0]["delta"];
    at = end;
    if (delta.contains("reasoning_content")) {
      EXPECT_FALSE(has_said);
      thoughts += delta["reasoning_content"].get<std::string>();
    }
    said += delta.value("content", "");
    has_said = !said.empty();
  }
  EXPECT_EQ(thoughts, "The cat < the dog.");
  EXPECT_EQ(said, "On the mat.");
}

TEST(ServedReasoning, ATemplateWithoutMarkersKeepsThem) {
  SmallServer server;
  const Json message = message_of(server, asked("<think>a</think>b"));
  EXPECT_EQ(message["content"], "<think>a</think>b");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

}  // namespace
}  // namespace dsmoe::testing

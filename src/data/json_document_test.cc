// Shapes of a line, keys of other names, conversations with tools.
#include "data/json_document.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe::data {
namespace {

using Shape = JsonDocument::Shape;

JsonDocument read(std::string_view line, const JsonKeys& keys = {}) {
  return read_json_document(line, keys, "f: line 1");
}

std::string refusal(std::string_view line, const JsonKeys& keys = {}) {
  try {
    read(line, keys);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("f: line 1"), 0u) << error.what();
    return error.what();
  }
  return "";
}

TEST(JsonDocument, OtherKeysAreLeftAlone) {
  EXPECT_EQ(read(R"({"text": "a", "id": 7, "meta": {"url": "u"}})").text, "a");
  const JsonDocument pair = read(R"({"id": 1, "prompt": "p", "completion": "c", "score": 0.5})");
  EXPECT_EQ(pair.shape, Shape::pair);
  EXPECT_EQ(pair.text + pair.completion, "pc");
  // A prompt beside the conversation it began is no shape of its own, nor beside a text.
  EXPECT_EQ(read(R"({"prompt": "p", "messages": [{"role": "user", "content": "u"}]})").shape,
            Shape::chat);
  EXPECT_EQ(read(R"({"text": "t", "prompt": "p"})").shape, Shape::text);
}

TEST(JsonDocument, TwoShapesAreAskedAbout) {
  const char* line = R"({"text": "t", "messages": [{"role": "user", "content": "u"}]})";
  EXPECT_NE(refusal(line).find("it is {\"text\"} and {\"messages\"} at once"), std::string::npos);
  EXPECT_EQ(read(line, {.text = "text"}).shape, Shape::text);
  EXPECT_EQ(read(line, {.messages = "messages"}).shape, Shape::chat);
}

TEST(JsonDocument, NamedKeysAreTheOnlyOnes) {
  EXPECT_EQ(read(R"({"body": "b", "text": "t"})", {.text = "body"}).text, "b");
  EXPECT_NE(refusal(R"({"text": "t"})", {.text = "body"}).find("expected {\"body\"}; --text-key"),
            std::string::npos);
  const JsonDocument pair = read(R"({"question": "q", "completion": "a"})", {.prompt = "question"});
  EXPECT_EQ(pair.shape, Shape::pair);
  EXPECT_EQ(pair.text, "q");
  EXPECT_EQ(read(R"({"conversations": [{"role": "user", "content": "u"}]})",
                 {.messages = "conversations"})
                .shape,
            Shape::chat);
}

TEST(JsonDocument, ToolTurns) {
  const JsonDocument document = read(
      R"({"tools": [{"type": "function", "function": {"name": "add"}}], "messages": [)"
      R"({"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2"}]},)"
      R"({"role": "assistant", "content": null, "tool_calls": [)"
      R"({"type": "function", "function": {"name": "add", "arguments": "{\"b\": 1, \"a\": 2}"}}]},)"
      R"({"role": "tool", "content": "3", "tool_call_id": "x"},)"
      R"({"role": "assistant", "content": "3", "tool_calls": null}]})");
  const OrderedJson& messages = document.chat.messages;
  EXPECT_EQ(messages[0]["content"], "1 + 2");
  EXPECT_EQ(messages[1]["content"], "");
  // The order of arguments is that of the line: a template prints them so.
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(messages[2]["tool_call_id"], "x");
  EXPECT_FALSE(messages[3].contains("tool_calls"));
  EXPECT_EQ(document.chat.tools[0]["function"]["name"], "add");
  EXPECT_EQ(text_of(messages[0]), "1 + 2");
  EXPECT_NE(text_of(messages[1]).find("\"name\":\"add\""), std::string::npos);
  EXPECT_EQ(
      read(R"({"messages": [{"role": "user", "content": "u"}], "tools": "[{\"name\": \"f\"}]"})")
          .chat.tools[0]["name"],
      "f");
}

TEST(JsonDocument, RefusalsOfConversations) {
  const auto chat = [](const std::string& message) {
    return refusal("{\"messages\": [" + message + "]}");
  };
  EXPECT_NE(chat(R"({"role": "tool"})").find("key \"content\" is missing"), std::string::npos);
  EXPECT_NE(chat(R"({"role": "user", "content": "x", "tool_calls": []})").find("of the assistant"),
            std::string::npos);
  EXPECT_NE(chat(R"({"role": "assistant", "tool_calls": [3]})").find("a tool call must be"),
            std::string::npos);
  EXPECT_NE(chat(R"({"role": "assistant", "tool_calls": [{"function": {"name": 3}}]})")
                .find("a tool call must be"),
            std::string::npos);
  EXPECT_NE(
      chat(
          R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]})")
          .find("must be an object, they are array"),
      std::string::npos);
  EXPECT_NE(
      chat(R"({"role": "user", "content": [{"type": "image"}]})").find("must be a string, or"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user", "content": "u"}], "tools": 3})")
                .find("\"tools\" must be a list, it is number"),
            std::string::npos);
  for (const char* tool : {R"({"name": 3})", R"({"function": {"name": ["f"]}})"}) {
    const std::string line = R"({"messages": [{"role": "user", "content": "u"}], "tools": [)";
    EXPECT_NE(refusal(line + tool + "]}").find("the \"name\" of a tool must be a string"),
              std::string::npos)
        << tool;
  }
}

}  // namespace
}  // namespace dsmoe::data

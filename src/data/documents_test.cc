// Text and JSONL documents, and the messages about broken ones.
#include "data/documents.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;

ReaderOptions with_template() {
  return {.render_chat = [](const Chat& chat) {
    std::vector<DocumentPart> parts;
    for (const OrderedJson& message : chat.messages) {
      const auto role = message["role"].get<std::string>();
      const auto content = message["content"].get<std::string>();
      if (content == "refuse me") fail(ErrorKind::input, "the template refuses");
      const bool answer = role == "assistant";
      parts.push_back({role + ": " + content, answer, answer});
    }
    return parts;
  }};
}

std::vector<Document> read(DocumentReader& reader) {
  std::vector<Document> all;
  for (Document document; reader.next(document);) all.push_back(document);
  return all;
}

std::vector<std::string> texts(std::string_view bytes, const ReaderOptions& options = {}) {
  std::vector<std::string> all;
  const auto reader = read_text(std::make_unique<MemoryStream>(bytes), "f.txt", options);
  for (const Document& document : read(*reader)) {
    EXPECT_EQ(document.parts.size(), 1u);
    EXPECT_TRUE(document.parts[0].counted);
    all.push_back(document.parts[0].text);
  }
  return all;
}

std::vector<Document> jsonl(std::string_view bytes,
                            const ReaderOptions& options = with_template()) {
  const auto reader = read_jsonl(std::make_unique<MemoryStream>(bytes), "f.jsonl", options);
  return read(*reader);
}

std::string jsonl_error(std::string_view bytes, const ReaderOptions& options = with_template()) {
  return error_of([&] { jsonl(bytes, options); });
}

using Strings = std::vector<std::string>;
using Parts = std::vector<DocumentPart>;

TEST(TextDocuments, EndAtTheMarkAndTheSeparatorAndTheEnd) {
  EXPECT_EQ(texts("one\n<|endoftext|>\ntwo<|endoftext|>three\n"),
            (Strings{"one\n", "two", "three\n"}));
  EXPECT_EQ(texts("a%%b<|endoftext|>c", {.separator = "%%"}), (Strings{"a", "b", "c"}));
  EXPECT_EQ(texts("a%%b"), Strings{"a%%b"});
}

TEST(TextDocuments, WithoutAnyTextArePassedOver) {
  EXPECT_EQ(texts(""), Strings{});
  EXPECT_EQ(texts("<|endoftext|>\n \n<|endoftext|>x<|endoftext|>"), Strings{"x"});
}

TEST(TextDocuments, BrokenUtf8IsRefusedWithItsPlace) {
  const std::string error = error_of([] { texts("fine\n<|endoftext|>\nbad \xE9t\xE9\n"); });
  EXPECT_NE(error.find("f.txt: line 3, byte offset 23: byte 0xe9"), std::string::npos) << error;
}

TEST(TextDocuments, LongerThanTheLimitAreRefused) {
  const std::string error = error_of(
      [] { texts("ok<|endoftext|>" + std::string(200, 'x'), {.max_document_bytes = 100}); });
  EXPECT_NE(error.find("--separator"), std::string::npos) << error;
}

TEST(JsonlDocuments, TextPromptAndMessages) {
  const auto all = jsonl(
      "{\"text\": \"h\\u00e9\\nllo\"}\r\n"
      "\n"
      "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
      "\"content\": \"ho\"}]}");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].parts, (Parts{{"h\xC3\xA9\nllo", true, false}}));
  EXPECT_EQ(all[1].parts, (Parts{{"2 + 2 =", false, false}, {" 4", true, false}}));
  EXPECT_EQ(all[2].parts,
            (Parts{{"user: hi", false, false, true}, {"assistant: ho", true, true, true}}));
}

TEST(JsonlDocuments, EmptyTextsArePassedOver) {
  EXPECT_TRUE(jsonl("{\"text\": \"\"}\n{\"prompt\": \"\", \"completion\": \"\"}\n").empty());
  EXPECT_EQ(jsonl("{\"prompt\": \"x\", \"completion\": \"\"}").size(), 1u);
}

TEST(JsonlDocuments, RefusalsNameFileLineAndKey) {
  struct Case {
    std::string line, expected;
  };
  const std::vector<Case> cases = {
      {R"({"question": "q", "answer": "a"})", "it has \"question\" and \"answer\"; expected"},
      {R"({"prompt": "p"})", "key \"completion\" is missing"},
      {R"({"completion": "c"})", "key \"prompt\" is missing"},
      {R"({"prompt": "p", "completion": "c", "text": "t"})",
       "it is {\"text\"} and {\"prompt\", \"completion\"} at once; say which"},
      {R"({})",
       "it has no key; expected {\"text\"}, {\"prompt\", \"completion\"} or {\"messages\"}"},
      {R"({"text": 5})", "\"text\" must be a string"},
      {R"({"text": null})", "\"text\" must be a string"},
      {R"(["text"])", "a JSON array instead of an object"},
      {R"("text")", "a JSON string instead of an object"},
      {R"({"text": "a")", "not valid JSON"},
      {R"({"text": "a"} {"text": "b"})", "not valid JSON"},
      {R"({"text": "a", "text": "b"})", "appears twice"},
      {R"({"text": "\ud800"})", "not valid JSON"},
      {"{\"text\": \"\xFF\"}", "not valid UTF-8"},
      {R"({"messages": "hi"})", "must be a list"},
      {R"({"messages": []})", "at least one message"},
      {R"({"messages": [5]})", "message 0 must be an object"},
      {R"({"messages": [{"role": "user"}]})", "message 0: key \"content\" is missing"},
      {R"({"messages": [{"role": "robot", "content": "x"}]})", "role \"robot\" is not known"},
      {R"({"messages": [{"role": "user", "content": ["x"]}]})", "\"content\" must be a string"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "\"content\" must be a string"},
      {R"({"messages": [{"role": "user", "content": "refuse me"}]})", "the template refuses"},
      {std::string(100, '['), "nested deeper"},
  };
  for (const auto& [line, expected] : cases) {
    const std::string error = jsonl_error("{\"text\": \"fine\"}\n" + line + "\n");
    EXPECT_NE(error.find(expected), std::string::npos) << line << "\n" << error;
    EXPECT_NE(error.find("f.jsonl: line 2"), std::string::npos) << error;
  }
}

TEST(JsonlDocuments, MessagesNeedATemplate) {
  const std::string error = jsonl_error(R"({"messages": [{"role": "user", "content": "x"}]})", {});
  EXPECT_NE(error.find("--chat-template"), std::string::npos) << error;
}

TEST(JsonlDocuments, LongLinesAreRefused) {
  const std::string line = "{\"text\": \"" + std::string(500, 'x') + "\"}\n";
  EXPECT_NE(jsonl_error("\n" + line, {.max_line_bytes = 100}).find("line 2 is longer"),
            std::string::npos);
}

TEST(Documents, FormatComesFromTheName) {
  const auto format = [](const char* name) { return resolve_format(name, InputFormat::automatic); };
  EXPECT_EQ(format("a/b.jsonl"), InputFormat::jsonl);
  EXPECT_EQ(format("b.jsonl.zst"), InputFormat::jsonl);
  EXPECT_EQ(format("b.json"), InputFormat::jsonl);
  EXPECT_EQ(format("b.ndjson"), InputFormat::jsonl);
  EXPECT_EQ(format("b.txt.zst"), InputFormat::text);
  EXPECT_EQ(format("README"), InputFormat::text);
  EXPECT_EQ(resolve_format("b.txt", InputFormat::jsonl), InputFormat::jsonl);
}

}  // namespace
}  // namespace dsmoe::data

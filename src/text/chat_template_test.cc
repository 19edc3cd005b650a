// Published template shapes against jinja2's output, and where a folder keeps its template.
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/scratch_folder.h"

namespace dsmoe::text {
namespace {

const std::filesystem::path kData = DSMOE_SOURCE_DIR "/src/text/testdata/chat";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ChatInput to_input(const OrderedJson& json) {
  ChatInput input{.messages = json["messages"],
                  .add_generation_prompt = json["add_generation_prompt"].get<bool>(),
                  .extra = json["extra"]};
  if (json["bos_token"].is_string()) input.bos_token = json["bos_token"].get<std::string>();
  if (json["eos_token"].is_string()) input.eos_token = json["eos_token"].get<std::string>();
  return input;
}

TEST(ChatTemplate, PublishedShapesEqualJinja2) {
  const auto conversations = OrderedJson::parse(read(kData / "conversations.json"));
  const auto goldens = OrderedJson::parse(read(kData / "goldens.json"));
  EXPECT_GE(goldens.size(), 12u);
  for (const auto& [shape, expected] : goldens.items()) {
    const auto chat = ChatTemplate::parse(read(kData / "templates" / (shape + ".jinja")), shape);
    ASSERT_EQ(expected.size(), conversations.size());
    int rendered = 0;
    for (std::size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(shape + ": " + conversations[i]["name"].get<std::string>());
      const auto& golden = expected[i];
      try {
        const std::string text = chat.render(to_input(conversations[i]));
        ASSERT_TRUE(golden.contains("text"))
            << "jinja2 says " << golden["error"] << ", we " << text;
        EXPECT_EQ(text, golden["text"].get<std::string>());
        ++rendered;
      } catch (const Error& error) {
        ASSERT_TRUE(golden.contains("error")) << error.what();
        const auto theirs = golden["error"].get<std::string>();
        const std::string raised = "TemplateError: ";  // what raise_exception was given
        if (theirs.starts_with(raised)) {
          EXPECT_NE(std::string(error.what()).find(theirs.substr(raised.size())), std::string::npos)
              << error.what();
        }
      }
    }
    EXPECT_GE(rendered, 15) << shape;
  }
}

TEST(ChatTemplate, DeepSeekConstantIsTheTestedShape) {
  EXPECT_EQ(deepseek_chat_template(), read(kData / "templates/deepseek.jinja"));
  const auto chat = ChatTemplate::parse(deepseek_chat_template(), "deepseek");
  const ChatInput input{
      .messages =
          Json::parse(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"},
                                  {"role": "user", "content": "Bye"}])"),
      .bos_token = "<b>",
      .eos_token = "<e>"};
  EXPECT_EQ(chat.render(input), "<b>User: Hi\n\nAssistant: Yo<e>User: Bye\n\nAssistant:");
}

// The budget grows with the conversation: length alone never refuses one.
TEST(ChatTemplate, LongConversationsRender) {
  ChatInput input{.bos_token = "<s>", .eos_token = "</s>"};
  for (int i = 0; i < 4000; ++i) {
    input.messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'x')}});
  }
  for (const char* shape :
       {"chatml", "qwen3_thinking", "llama31_tools", "mistral", "gemma", "deepseek"}) {
    const auto chat =
        ChatTemplate::parse(read(kData / "templates" / (std::string(shape) + ".jinja")), shape);
    EXPECT_GT(chat.render(input).size(), 8'000'000u) << shape;
  }
}

TEST(ChatTemplate, MessagesMustBeAListOfObjects) {
  const auto chat = ChatTemplate::parse("{{ messages | length }}", "t");
  EXPECT_EQ(chat.render({}), "0");
  EXPECT_THROW(chat.render({.messages = Json{{"role", "user"}}}), Error);
  EXPECT_THROW(chat.render({.messages = Json::array({"hi"})}), Error);
  EXPECT_THROW(chat.render({.extra = Json::array()}), Error);
  EXPECT_THROW(chat.render({.messages = Json::array({{{"role", "\xFF"}}})}), Error);
  EXPECT_THROW(chat.render({.messages = Json::array({{{"n", UINT64_MAX}}})}), Error);
  Json deep = Json::array();
  for (int i = 0; i < 200; ++i) deep = Json::array({deep});
  EXPECT_THROW(chat.render({.extra = Json{{"deep", deep}}}), Error);
}

TEST(ChatTemplate, ADayIsToldOnlyWhereOneIsGiven) {
  auto chat = ChatTemplate::parse(
      "{% if strftime_now is defined %}{{ strftime_now('%d %B %Y, %a, %-j, %H:%M 100%%') }}"
      "{% else %}none{% endif %}",
      "t");
  EXPECT_EQ(chat.render({}), "none");
  chat.set_date(parse_date("2026-02-03"));
  EXPECT_EQ(chat.render({}), "03 February 2026, Tue, 34, 00:00 100%");
  auto other = ChatTemplate::parse("{{ strftime_now('%Q') }}", "t");
  other.set_date(parse_date("2026-02-03"));
  EXPECT_THROW(other.render({}), Error);
  for (const char* wrong :
       {"", "2026-2-3", "2026-02-30", "2026-13-01", "20260203", "2026-02-03x"}) {
    EXPECT_THROW(parse_date(wrong), Error) << wrong;
  }
}

TEST(ChatTemplate, ToolsAndDocumentsAreNoneUnlessGiven) {
  const auto chat = ChatTemplate::parse(
      "{{ tools is none }} {{ documents is none }} {{ bos_token is defined }}", "t");
  EXPECT_EQ(chat.render({}), "True True False");
  EXPECT_EQ(chat.render({.bos_token = "", .extra = Json{{"tools", Json::array()}}}),
            "False True True");
}

class ChatFolder : public testing::Test {
 protected:
  void write(const char* name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string refusal() {
    try {
      load_chat_template(folder_);
      load_special_tokens(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      return std::string(error.what()).substr((folder_ / "").string().size());
    }
    return "accepted";
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(ChatFolder, NoTemplateIsNoError) {
  EXPECT_FALSE(load_chat_template(folder_).has_value());
  write("tokenizer_config.json", R"({"chat_template": null, "bos_token": null})");
  EXPECT_FALSE(load_chat_template(folder_).has_value());
  EXPECT_FALSE(load_special_tokens(folder_).bos.has_value());
}

TEST_F(ChatFolder, TheJinjaFileWins) {
  write("tokenizer_config.json", R"({"chat_template": "from config"})");
  EXPECT_EQ(load_chat_template(folder_)->render({}), "from config");
  write("chat_template.jinja", "from file");
  EXPECT_EQ(load_chat_template(folder_)->render({}), "from file");
  EXPECT_EQ(load_chat_template(folder_)->source(), "from file");
}

TEST_F(ChatFolder, ListsOfTemplatesGiveTheDefault) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "{% do x %}"},
                                                       {"name": "default", "template": "yes"}]})");
  EXPECT_EQ(load_chat_template(folder_)->render({}), "yes");
}

TEST_F(ChatFolder, SpecialTokensAreTextOrObjects) {
  write("tokenizer_config.json",
        R"({"bos_token": {"__type": "AddedToken", "content": "<b>"}, "eos_token": "<e>"})");
  const SpecialTokenTexts tokens = load_special_tokens(folder_);
  EXPECT_EQ(tokens.bos, "<b>");
  EXPECT_EQ(tokens.eos, "<e>");
  EXPECT_FALSE(tokens.pad.has_value());
}

TEST_F(ChatFolder, BadConfigsAreRefused) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[]", "tokenizer_config.json: expected a JSON object, found array"},
      {R"({"chat_template": 1})",
       "tokenizer_config.json: chat_template: must be a string or a list, not number"},
      {R"({"chat_template": {}})",
       "tokenizer_config.json: chat_template: must be a string or a list, not object"},
      {R"({"chat_template": [1]})",
       "tokenizer_config.json: chat_template: expected a list of {\"name\": string, \"template\": "
       "string}"},
      {R"({"chat_template": []})",
       "tokenizer_config.json: chat_template: no template is named \"default\"; found: none"},
      {R"({"chat_template": [{"name": "rag", "template": "x"}]})",
       "tokenizer_config.json: chat_template: no template is named \"default\"; found: \"rag\""},
      {R"({"chat_template": "{{ x | nope }}"})",
       "tokenizer_config.json: chat_template: line 1, column 8: the filter 'nope' is not "
       "supported"},
      {R"({"bos_token": 5})",
       "tokenizer_config.json: \"bos_token\" must be a string or an object with a string "
       "\"content\""},
      {R"({"eos_token": {"content": 5}})",
       "tokenizer_config.json: \"eos_token\" must be a string or an object with a string "
       "\"content\""},
  };
  for (const auto& [text, message] : cases) {
    write("tokenizer_config.json", text);
    EXPECT_EQ(refusal(), message);
  }
  write("tokenizer_config.json", "{");
  EXPECT_NE(refusal().find("not valid JSON"), std::string::npos);
  write("chat_template.jinja", "\n{% if x %}");
  EXPECT_EQ(
      refusal(),
      "chat_template.jinja: line 2, column 11: the template ends where '{% endif %}' was expected");
  write("chat_template.jinja", std::string(300 << 10, 'x'));
  EXPECT_NE(refusal().find("at most 262144 are expected"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::text

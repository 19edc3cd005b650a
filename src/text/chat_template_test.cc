// Published template shapes against jinja2's output, and where a folder keeps its template.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

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

}  // namespace
}  // namespace dsmoe::text

#include "text/reasoning.h"

#include <gtest/gtest.h>

namespace dsmoe::text {
namespace {

const ReasoningMarkers& kThink = *find_reasoning("{{ '<think>' }}{{ '</think>' }}");

// The same whatever the pieces are.
SplitAnswer split(std::string_view answer, bool is_open = false) {
  SplitAnswer whole;
  for (std::size_t size = 1; size <= answer.size() + 1; ++size) {
    ReasoningReader reader(kThink, is_open);
    SplitAnswer joined;
    const auto add = [&](const SplitAnswer& part) {
      joined.reasoning += part.reasoning;
      joined.text += part.text;
    };
    for (std::size_t at = 0; at < answer.size(); at += size)
      add(reader.push(answer.substr(at, size)));
    add(reader.finish());
    if (size == 1) whole = joined;
    EXPECT_EQ(joined.reasoning, whole.reasoning) << size << " bytes at a time";
    EXPECT_EQ(joined.text, whole.text) << size << " bytes at a time";
  }
  return whole;
}

TEST(Reasoning, MarkersOfATemplate) {
  EXPECT_EQ(find_reasoning("{{ message.content }}"), nullptr);
  EXPECT_EQ(find_reasoning("{{ content.split('</think>')[-1] }}")->begin, "<think>");
  EXPECT_EQ(find_reasoning("[THINK]x[/THINK]")->end, "[/THINK]");
}

TEST(Reasoning, ThePromptMayOpenIt) {
  EXPECT_TRUE(opens_reasoning(kThink, "User: hi\nAssistant: <think>\n"));
  EXPECT_FALSE(opens_reasoning(kThink, "Assistant: <think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_reasoning(kThink, "Assistant:"));
}

TEST(Reasoning, ComesApart) {
  const SplitAnswer closed = split("<think>\nSo < 2, and <th.\n</think>\n\nTwo.\n");
  EXPECT_EQ(closed.reasoning, "So < 2, and <th.");
  EXPECT_EQ(closed.text, "Two.\n");
  EXPECT_EQ(split(" \n<think>a</think>b").reasoning, "a");
  EXPECT_EQ(split("<think></think>b").reasoning, "");
  EXPECT_EQ(split("<think></think>b").text, "b");
  EXPECT_EQ(split("<think> \n </think>b").reasoning, "");
  EXPECT_EQ(split("a\n\nb</think> c", true).reasoning, "a\n\nb");
  EXPECT_EQ(split("a\n\nb</think> c", true).text, "c");
}

TEST(Reasoning, AnAnswerWithoutItIsText) {
  EXPECT_EQ(split("Two.").text, "Two.");
  EXPECT_EQ(split("  <thin air>").text, "  <thin air>");
  EXPECT_EQ(split("<thi").text, "<thi");
  EXPECT_EQ(split("").text, "");
  // Later markers are what the answer says.
  EXPECT_EQ(split("Write <think> and </think>.").text, "Write <think> and </think>.");
  EXPECT_EQ(split("<think>a</think>b <think>c</think>").text, "b <think>c</think>");
}

TEST(Reasoning, ThatNeverEndsIsAllThereIs) {
  const SplitAnswer open = split("<think>so far \n");
  EXPECT_EQ(open.reasoning, "so far \n");
  EXPECT_EQ(open.text, "");
  EXPECT_EQ(split("so </thi", true).reasoning, "so </thi");
}

}  // namespace
}  // namespace dsmoe::text

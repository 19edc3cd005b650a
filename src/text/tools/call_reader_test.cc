// Calls in answers, whole and cut at every byte.
#include "text/tools/call_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dsmoe::text {
namespace {

using Kind = CallEvent::Kind;

// Neighbouring texts and arguments joined: what a reader of the whole stream has in the end.
std::vector<CallEvent> joined(std::vector<CallEvent> events) {
  std::vector<CallEvent> result;
  for (CallEvent& event : events) {
    const bool goes_on = !result.empty() && result.back().kind == event.kind &&
                         (event.kind == Kind::text || event.kind == Kind::arguments);
    if (goes_on) {
      result.back().text += event.text;
    } else {
      result.push_back(std::move(event));
    }
  }
  return result;
}

std::vector<CallEvent> read(const CallSyntax& syntax, std::string_view text, std::size_t step,
                            const CallReader::StringArguments& strings = {}) {
  CallReader reader(syntax, strings);
  std::vector<CallEvent> events;
  const auto add = [&](std::vector<CallEvent> more) {
    events.insert(events.end(), more.begin(), more.end());
  };
  for (std::size_t at = 0; at < text.size(); at += step) add(reader.push(text.substr(at, step)));
  add(reader.finish());
  return joined(std::move(events));
}

// The same for every way to cut the text into pieces of one length.
void expect(const CallSyntax& syntax, std::string_view text, const std::vector<CallEvent>& events,
            const CallReader::StringArguments& strings = {}) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{7}, text.size() + 1}) {
    EXPECT_EQ(read(syntax, text, step, strings), events) << "pieces of " << step << ": " << text;
  }
}

const CallSyntax& syntax_of(std::string_view source) {
  const CallSyntax* syntax = find_call_syntax(source);
  EXPECT_NE(syntax, nullptr) << source;
  return syntax == nullptr ? hermes_syntax() : *syntax;
}

TEST(CallSyntax, IsFoundByItsMarkers) {
  EXPECT_EQ(find_call_syntax("{{ messages }}"), nullptr);
  EXPECT_EQ(syntax_of("'<tool_call>' {\"name\"").name, "Hermes");
  EXPECT_EQ(syntax_of("<tool_call> <arg_key>").name, "GLM");
  EXPECT_EQ(syntax_of("<｜tool▁calls▁begin｜> ```json").name, "DeepSeek V3");
  EXPECT_EQ(syntax_of("<｜tool▁calls▁begin｜>").name, "DeepSeek V3.1");
  EXPECT_EQ(syntax_of("<tool_call>\n<function=x>").name, "Qwen3-Coder");
}

TEST(CallReader, TextAlone) {
  for (const char* text : {"Hello", " a < b <tool", "<tool_cal", "a\n\n", "<<<", "{\"name\": 1}"}) {
    expect(hermes_syntax(), text, {{Kind::text, text}});
  }
  expect(hermes_syntax(), "", {});
}

TEST(CallReader, HermesCalls) {
  expect(hermes_syntax(),
         "I look.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"}\\\"{\", "
         "\"days\": [1, 2]}}\n</tool_call>\n<tool_call>{\"arguments\": {}, \"name\": "
         "\"time\"}</tool_call>\n",
         {{Kind::text, "I look."},
          {Kind::begin, "weather"},
          {Kind::arguments, R"({"town": "}\"{", "days": [1, 2]})"},
          {Kind::end},
          {Kind::begin, "time"},
          {Kind::arguments, "{}"},
          {Kind::end}});
}

TEST(CallReader, ArgumentsComeAsTheyAreWritten) {
  CallReader reader(hermes_syntax());
  EXPECT_TRUE(reader.push("<tool_call>\n{\"name\": \"f\"").size() == 1);
  EXPECT_EQ(reader.push(", \"arguments\": {\"a\""),
            (std::vector<CallEvent>{{Kind::arguments, "{\"a\""}}));
  EXPECT_EQ(reader.push(": 1"), (std::vector<CallEvent>{{Kind::arguments, ": 1"}}));
}

TEST(CallReader, ACallThatIsCutStaysAsFarAsItCame) {
  expect(hermes_syntax(), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x",
         {{Kind::begin, "f"}, {Kind::arguments, "{\"a\": \"x"}});
  expect(hermes_syntax(), "Hm.<tool_call>\n{\"na", {{Kind::text, "Hm."}});
}

TEST(CallReader, WhatOnlyLooksLikeACallIsText) {
  expect(hermes_syntax(), "<tool_call> is a marker", {{Kind::text, "<tool_call>is a marker"}});
}

TEST(CallReader, DeepSeekCalls) {
  const std::vector<CallEvent> events{{Kind::text, "Well."},
                                      {Kind::begin, "get_weather"},
                                      {Kind::arguments, R"({"town": "Zürich"})"},
                                      {Kind::end},
                                      {Kind::begin, "f"},
                                      {Kind::arguments, "{}"},
                                      {Kind::end}};
  expect(
      syntax_of("<｜tool▁calls▁begin｜> ```json"),
      "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
      "{\"town\": "
      "\"Zürich\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
      "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      events);
  expect(syntax_of("<｜tool▁calls▁begin｜>"),
         "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"town\": "
         "\"Zürich\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         events);
}

TEST(CallReader, KimiCalls) {
  expect(syntax_of("<|tool_calls_section_begin|>"),
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
         "{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
         {{Kind::begin, "f"}, {Kind::arguments, "{\"a\": 1}"}, {Kind::end}});
}

TEST(CallReader, GlmCalls) {
  const CallReader::StringArguments strings{{"weather", {"town"}}};
  expect(syntax_of("<tool_call> <arg_key>"),
         "\n<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>12 \"x\"</arg_value>\n"
         "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
         "<tool_call>now</tool_call>",
         {{Kind::begin, "weather"},
          {Kind::arguments, R"({"town": "12 \"x\"", "days": 2})"},
          {Kind::end},
          {Kind::begin, "now"},
          {Kind::arguments, "{}"},
          {Kind::end}},
         strings);
}

TEST(CallReader, QwenCoderCalls) {
  const CallReader::StringArguments strings{{"write", {"path", "text"}}};
  expect(
      syntax_of("<tool_call><function="),
      "I write.\n<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n"
      "<parameter=text>\n\n1 < 2 & \"x\"\n</b>\n\n</parameter>\n<parameter=mode>\n[1, 2]\n"
      "</parameter>\n</function>\n</tool_call>\n<tool_call><function=now></function></tool_call>",
      {{Kind::text, "I write."},
       {Kind::begin, "write"},
       {Kind::arguments, R"({"path": "a.txt", "text": "\n1 < 2 & \"x\"\n</b>\n", "mode": [1, 2]})"},
       {Kind::end},
       {Kind::begin, "now"},
       {Kind::arguments, "{}"},
       {Kind::end}},
      strings);
}

// Any text at all: no crash, no loop, and what is said is never a whole marker with a call in it.
TEST(CallReader, StrangeTexts) {
  for (const char* source :
       {"<tool_call>", "<tool_call><arg_key>", "<tool_call><function=", "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜>```json", "<|tool_calls_section_begin|>"}) {
    const CallSyntax& syntax = syntax_of(source);
    const std::string begin(syntax.call_begin), end(syntax.call_end);
    for (const std::string& text :
         {begin + begin + begin, begin + "}" + end, begin + "{}" + end, begin + "{]" + end,
          begin + "{\"name\": 5, \"arguments\": 7}" + end, begin + "{,,::" + end, end + begin,
          begin + "f" + end + end, begin + std::string(5000, 'x'), begin + "{\"a\": \"" + end,
          begin + "f<arg_key></arg_value><arg_value>" + end, begin + "<function=" + end,
          begin + "<function=f><parameter=</parameter>" + end,
          begin + "<functio" + begin + "<function=f>\n<parameter=a>" + end}) {
      const auto whole = read(syntax, text, text.size() + 1);
      EXPECT_EQ(read(syntax, text, 1), whole) << syntax.name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace dsmoe::text

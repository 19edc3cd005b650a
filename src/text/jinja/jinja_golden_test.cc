// Small templates against what Python's jinja2 made of them (oracle/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "base/json.h"
#include "text/jinja/jinja_eval.h"

namespace dsmoe::text::jinja {
namespace {

nlohmann::ordered_json read_goldens() {
  std::ifstream file(DSMOE_SOURCE_DIR "/src/text/testdata/chat/expressions.json");
  return nlohmann::ordered_json::parse(file);
}

// What jinja2 renders and dsmoe refuses by name, with a part of the refusal.
const std::map<std::string, std::string> kRefused = {
    {"{{ none[1:] }}", "cannot take a slice of none"},
    {"{{ n | items }}", "the filter 'items' needs a dict"},
    {"{{ d.get is defined }}", "the method 'get' without a call is not supported"},
    {"{{ d.items }}", "the method 'items' without a call is not supported"},
    {"{{ s.upper }}", "the method 'upper' without a call is not supported"},
    {"{{ 5 .real is defined }}", "the method 'real' without a call is not supported"},
    {"{{ a | upper }}", "letter case of text beyond ASCII is not supported"},
    {"{{ '%d' % 3 }}", "'%' formatting of strings is not supported"},
    {"{{ 'a'.encode() }}", "the method 'encode' is not supported"},
    {"{{ s.__class__ }}", "the attribute '__class__' is not supported"},
    {"{{ self }}", "'self' is not supported"},
    {"{{ cycler }}", "'cycler' is not supported"},
    {"{{ joiner(',') }}", "'joiner' is not supported"},
    {"{{ xs | sum }}", "the filter 'sum' is not supported"},
    {"{{ 'a' | e }}", "the filter 'e' is not supported"},
    {"{% block x %}{% endblock %}", "the tag 'block' is not supported"},
};

TEST(JinjaGolden, SmallTemplatesEqualJinja2) {
  const auto goldens = read_goldens();
  int rendered = 0;
  int refused_by_both = 0;
  std::size_t refused_by_us = 0;
  for (const auto& golden : goldens["cases"]) {
    const auto source = golden["template"].get<std::string>();
    SCOPED_TRACE(source);
    const auto refusal = kRefused.find(source);
    try {
      const std::string text = render(parse(source, "t"), goldens["context"]);
      ASSERT_TRUE(golden.contains("text")) << "jinja2 says " << golden["error"] << ", we " << text;
      EXPECT_EQ(text, golden["text"].get<std::string>());
      EXPECT_EQ(refusal, kRefused.end()) << "no longer refused";
      ++rendered;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      if (golden.contains("error")) {
        ++refused_by_both;
      } else if (refusal == kRefused.end()) {
        ADD_FAILURE() << error.what();
      } else {
        EXPECT_NE(std::string(error.what()).find(refusal->second), std::string::npos)
            << error.what();
        ++refused_by_us;
      }
    }
  }
  EXPECT_GE(rendered, 500);
  EXPECT_GE(refused_by_both, 90);
  EXPECT_EQ(refused_by_us, kRefused.size());
}

}  // namespace
}  // namespace dsmoe::text::jinja

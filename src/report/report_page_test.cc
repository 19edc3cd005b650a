// Nothing from the data becomes HTML; curves are thinned, not bent; odd metrics are refused.
#include "report/report_page.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "report/run_report.h"

namespace dsmoe::report {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

std::string data_of(const std::string& page) {
  const std::string start = "id=\"data\">";
  const std::size_t begin = page.find(start) + start.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(ReportPage, DataNeverBecomesHtml) {
  const std::string harmless = report_page({{"title", "run"}});
  for (const char* evil :
       {"</script><script>alert(1)</script>", "<!--<script>", "]]><img src=x onerror=alert(1)>",
        "\"}};alert(1)//", "&lt;b&gt; &amp;", "\xe2\x80\xa8 line separator"}) {
    const std::string page =
        report_page({{"title", evil}, {evil, "key"}, {"samples", {{{"answer", evil}}}}});
    for (const char* tag : {"<script", "</script", "<!--", "<img", "<b>"}) {
      EXPECT_EQ(count(page, tag), count(harmless, tag)) << tag << " in " << evil;
    }
    const std::string json = data_of(page);
    EXPECT_EQ(json.find_first_of("<>&"), std::string::npos);
    EXPECT_EQ(Json::parse(json)["title"], evil);
    EXPECT_EQ(Json::parse(json)["samples"][0]["answer"], evil);
  }
}

TEST(ReportPage, BrokenUtf8IsReplaced) {
  const std::string page = report_page({{"title", "a\xff\xfe"}});
  EXPECT_EQ(Json::parse(data_of(page))["title"], "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ReportPage, AsksNothingOfTheNetwork) {
  const std::string page = report_page({{"title", "run"}});
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  // The only address is the name of the SVG namespace.
  EXPECT_EQ(count(page, "http"), 1 + count(page, "http-equiv"));
  for (const char* word : {"fetch(", "XMLHttpRequest", "import(", "url(", "innerHTML", "src="}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
}

std::vector<train::LoggedStep> log_of(int64_t steps) {
  std::vector<train::LoggedStep> log;
  for (int64_t s = 1; s <= steps; ++s) {
    train::LoggedStep step{.step = s, .loss = static_cast<double>(s), .tokens = 10, .seconds = 2};
    step.layers.push_back({.layer = 1, .dead = 1});
    if (s % 2 == 0) step.layers[0].load = {0.5, static_cast<double>(s)};
    if (s == steps) step.validation_loss = 0.25;
    log.push_back(step);
  }
  return log;
}

TEST(MetricsJson, ThinsByAveraging) {
  const OrderedJson json = metrics_json(log_of(10), {.max_points = 5, .max_columns = 2});
  EXPECT_EQ(json["steps"], OrderedJson::parse("[2,4,6,8,10]"));
  EXPECT_EQ(json["loss"], OrderedJson::parse("[1.5,3.5,5.5,7.5,9.5]"));
  EXPECT_EQ(json["speed"][0], 5);
  EXPECT_EQ(json["validation"], OrderedJson::parse("[[10,0.25]]"));
  EXPECT_EQ(json["layers"][0]["dead"][4], 1);
  // Loads of steps 2 4 | 6 8 10.
  EXPECT_EQ(json["loads"]["steps"], OrderedJson::parse("[4,10]"));
  EXPECT_EQ(json["loads"]["layers"][0]["values"], OrderedJson::parse("[[0.5,3],[0.5,8]]"));
}

TEST(MetricsJson, OneStepAndNoLayers) {
  std::vector<train::LoggedStep> log = log_of(1);
  log[0].layers.clear();
  const OrderedJson json = metrics_json(log, {});
  EXPECT_EQ(json["steps"], OrderedJson::parse("[1]"));
  EXPECT_TRUE(json["layers"].empty());
  EXPECT_TRUE(json["loads"]["layers"].empty());
}

TEST(MetricsJson, LoadsOfOtherNumbersOfExpertsAreRefused) {
  std::vector<train::LoggedStep> log = log_of(4);
  log[3].layers[0].load.push_back(1);
  EXPECT_THROW(metrics_json(log, {}), Error);
}

}  // namespace
}  // namespace dsmoe::report

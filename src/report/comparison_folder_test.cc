// Settings survive the disk, other settings are refused, unfinished runs are left out.
#include "report/comparison_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "report/comparison_figure.h"
#include "report/comparison_text.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

CompareSettings some_settings() {
  return {.base = model::read_config(DSMOE_SOURCE_DIR "/configs/compare.json"),
          .shape = {.segments = 4},
          .num_seeds = 2,
          .steps = 2,
          .batch = 4,
          .seq = 64,
          .warmup = 1,
          .valid_rows = 8,
          .schedule = "cosine",
          .lr = {.all = 0.001},
          .data = "demo",
          .data_title = "a text"};
}

std::string refusal(const fs::path& folder, const CompareSettings& settings) {
  try {
    check_same_comparison(folder, settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A finished run as far as a comparison looks at it.
void fake_run(const fs::path& run, double loss) {
  fs::create_directories(run / "step-00000002");
  std::ofstream(run / "step-00000002/MANIFEST.json") << "{}";
  std::ofstream log(run / "metrics.jsonl");
  for (int step = 1; step <= 2; ++step) {
    log << fmt::format(
        R"({{"step":{},"loss":3,"balance_loss":0,"device_balance_loss":0,"z_loss":0,"lr":0,)"
        R"("gradient_norm":1,"tokens":100,"seconds":0.5,"validation_loss":{},"layers":[]}})"
        "\n",
        step, loss + 2 - step);
  }
}

TEST(ComparisonFolder, SettingsComeBack) {
  const ScratchFolder scratch;
  CompareSettings settings = some_settings();
  settings.floor = 0.25;
  settings.lr.own = {{"b", 0.002}};
  settings.shape.shared = {2};
  settings.shape.fp32 = {"c"};
  write_settings(scratch.path(), settings);
  const CompareSettings read = read_settings(scratch.path());
  EXPECT_EQ(read.base.to_json(), settings.base.to_json());
  EXPECT_EQ(read.num_seeds, 2);
  EXPECT_EQ(read.lr.all, 0.001);
  EXPECT_EQ(read.lr.own, settings.lr.own);
  EXPECT_EQ(read.shape.shared, settings.shape.shared);
  EXPECT_EQ(read.shape.fp32, settings.shape.fp32);
  EXPECT_EQ(read.floor, 0.25);
  EXPECT_EQ(refusal(scratch.path(), settings), "");
}

TEST(ComparisonFolder, OtherSettingsAreRefusedButMoreSeedsAreNot) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  CompareSettings settings = some_settings();
  settings.num_seeds = 5;
  settings.shape.upper_bound = true;
  EXPECT_EQ(refusal(scratch.path(), settings), "");
  settings.former_data = some_settings().data;  // an earlier program's name for the same
  settings.data = "content";
  EXPECT_EQ(refusal(scratch.path(), settings), "");
  settings.former_data = "";
  EXPECT_NE(refusal(scratch.path(), settings).find("data: it has"), std::string::npos);
  settings.data = some_settings().data;
  settings.steps = 3;
  settings.base.aux_loss_alpha = 0.5;
  const std::string text = refusal(scratch.path(), settings);
  EXPECT_NE(text.find("steps: it has 2, now 3"), std::string::npos) << text;
  EXPECT_NE(text.find("config"), std::string::npos) << text;
}

// Settings of a folder with one rate for all, and no models but the paper's.
TEST(ComparisonFolder, EarlierSettingsAreRead) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  Json json = parse_json(read_small_file(scratch / kCompareFile, 1 << 20), "test");
  for (const char* key : {"own_lr", "shared", "fp32"}) ASSERT_EQ(json.erase(key), 1u) << key;
  std::ofstream(scratch / kCompareFile) << json.dump();
  EXPECT_EQ(read_settings(scratch.path()).lr.of("b"), 0.001);
  EXPECT_EQ(refusal(scratch.path(), some_settings()), "");
  for (const auto& [key, wrong] :
       {std::pair("own_lr", "[1]"), std::pair("shared", "\"2\""), std::pair("fp32", "[2]")}) {
    Json broken = json;
    broken[key] = Json::parse(wrong);
    std::ofstream(scratch / kCompareFile) << broken.dump();
    EXPECT_THROW(read_settings(scratch.path()), Error) << key;
  }
}

TEST(ComparisonFolder, RatesOfModels) {
  LearningRates rates{.all = 0.003};
  parse_rates({"dense=1e-3", "0.002", "b=0.004"}, rates);
  EXPECT_EQ(rates.of("dense"), 0.001);
  EXPECT_EQ(rates.of("a"), 0.002);
  EXPECT_EQ(rates.of("b"), 0.004);
  EXPECT_EQ(rates.text(), "0.002, b 0.004, dense 0.001");
  for (const char* wrong : {"", "b=", "b=x", "1e-3 ", "2", "b=-1", "nan", "b=1=2"}) {
    EXPECT_THROW(parse_rates({wrong}, rates), Error) << wrong;
  }
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  CompareSettings settings = some_settings();
  settings.lr.own["b"] = 0.004;
  EXPECT_NE(refusal(scratch.path(), settings).find("own_lr"), std::string::npos);
}

TEST(ComparisonFolder, BrokenSettingsAreRefused) {
  const ScratchFolder scratch;
  for (const char* text : {"", "[]", "{}", R"({"format":1})", R"({"format":"1"})"}) {
    std::ofstream(scratch / kCompareFile) << text;
    EXPECT_THROW(read_settings(scratch.path()), Error) << text;
  }
}

TEST(ComparisonFolder, LossesArePairedBySeed) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  fake_run(scratch / "a-seed-1", 2.0);
  fake_run(scratch / "a-seed-2", 4.0);
  fake_run(scratch / "b-seed-2", 3.5);
  fake_run(scratch / "c-seed-1", 1.5);
  fake_run(scratch / "c-seed-2", 3.0);
  fs::remove_all(scratch / "b-seed-2/step-00000002");  // not finished
  const Comparison comparison = read_comparison(scratch.path());
  ASSERT_EQ(comparison.models.size(), 4u);
  const ModelResult &dense = comparison.models[0], &a = comparison.models[1],
                    &b = comparison.models[2], &c = comparison.models[3];
  EXPECT_TRUE(dense.runs.empty());
  EXPECT_TRUE(b.runs.empty());
  EXPECT_EQ(a.loss.mean, 3.0);
  EXPECT_EQ(a.excess.mean, 0.75);
  EXPECT_EQ(a.excess.lowest, 0.5);
  EXPECT_EQ(a.num_pairs, 2u);
  EXPECT_EQ(c.excess.mean, 0);
  EXPECT_EQ(a.tokens_per_second, 200);
  EXPECT_EQ(a.runs[0].validation.size(), 2u);
  EXPECT_EQ(a.experts.total, c.experts.total);

  // dense and b have no finished run, so that of the pairs in a row none is left.
  EXPECT_TRUE(comparison.differences.empty());

  const std::string text = format_comparison(comparison);
  EXPECT_NE(text.find("unfinished"), std::string::npos);
  EXPECT_NE(text.find("+0.7500"), std::string::npos) << text;
  const OrderedJson json = comparison_json(comparison);
  EXPECT_EQ(json["models"][1]["validation_loss"]["mean"], 3.0);
  EXPECT_FALSE(json["models"][0].contains("validation_loss"));
}

TEST(ComparisonFolder, DifferencesInARowAndOfRoundings) {
  const ScratchFolder scratch;
  CompareSettings settings = some_settings();
  settings.num_seeds = 3;
  settings.shape.fp32 = {"c"};
  write_settings(scratch.path(), settings);
  for (const auto& [run, loss] :
       {std::pair("a-seed-1", 2.25), std::pair("a-seed-2", 2.5), std::pair("a-seed-3", 2.75),
        std::pair("b-seed-1", 2.0), std::pair("b-seed-2", 2.25), std::pair("b-seed-3", 3.0),
        std::pair("c-seed-3", 2.0), std::pair("c-fp32-seed-3", 2.125)}) {
    fake_run(scratch / run, loss);
  }
  const Comparison comparison = read_comparison(scratch.path());
  ASSERT_EQ(comparison.differences.size(), 3u);
  const PairedDifference &ab = comparison.differences[0], &bc = comparison.differences[1],
                         &roundings = comparison.differences[2];
  EXPECT_EQ(ab.of + "-" + ab.less, "a-b");
  ASSERT_EQ(ab.pairs.size(), 3u);
  EXPECT_EQ(ab.pairs[2].seed, 3);
  EXPECT_EQ(ab.pairs[2].difference, -0.25);
  EXPECT_NEAR(ab.spread.mean, 0.25 / 3, 1e-12);
  EXPECT_EQ(bc.pairs.size(), 1u);
  EXPECT_EQ(roundings.of + "-" + roundings.less, "c-fp32-c");
  EXPECT_EQ(roundings.spread.mean, 0.125);

  const std::string text = format_comparison(comparison);
  EXPECT_NE(text.find("a - b"), std::string::npos) << text;
  EXPECT_NE(text.find("2 of 3"), std::string::npos) << text;
  const OrderedJson json = comparison_json(comparison);
  EXPECT_EQ(json["differences"][0]["seeds"][2], (OrderedJson{3, -0.25}));
  // 0.0833 +- 4.3027 * 0.28868 / sqrt(3)
  EXPECT_NEAR(json["differences"][0]["interval"][1], 0.8005, 1e-3);
  EXPECT_TRUE(json["differences"][1]["interval"].is_null());
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(ComparisonFigure, ACurveAndABandPerModelAndPanel) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  EXPECT_EQ(write_figure(scratch / "report.html", read_comparison(scratch.path())), "");
  EXPECT_FALSE(fs::exists(scratch / "report.svg"));

  fake_run(scratch / "a-seed-1", 2.0);
  fake_run(scratch / "a-seed-2", 4.0);
  fake_run(scratch / "b-seed-2", 3.0);
  fake_run(scratch / "c-seed-1", 1.5);
  const Comparison comparison = read_comparison(scratch.path());
  const fs::path file = write_figure(scratch / "report.html", comparison);
  EXPECT_EQ(file, scratch / "report.svg");
  const std::string svg = read_small_file(file, 1 << 20);
  // Losses of a, b, c; minus c of a and c only: no seed of b has a (c) beside it.
  EXPECT_EQ(count_of(svg, "<polygon"), 5u);
  EXPECT_EQ(count_of(svg, "<polyline"), 5u + 3);  // and the legend's
  EXPECT_NE(svg.find("(a) top 2 of 8 (2 seeds)"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("dense"), std::string::npos);
  // Losses from 1.5 to 5 and 4 % more: the mean of a's last, 3, at (5.14 - 3) / 3.78 of 250.
  EXPECT_NE(svg.find("414.0,157.5\"/>"), std::string::npos) << svg;
  EXPECT_THROW(write_figure(scratch / "figure.svg", comparison), Error);
}

TEST(ComparisonFigure, TicksOfNumbersToWhichOneAddsNothing) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  fake_run(scratch / "a-seed-1", 1e18);
  fake_run(scratch / "a-seed-2", 1e18 + 512);
  EXPECT_LT(comparison_figure(read_comparison(scratch.path())).size(), 20000u);
}

// No difference is invented where (c) has not run, nor a deviation of one pair.
TEST(ComparisonFolder, DifferencesCountTheirPairs) {
  const ScratchFolder scratch;
  write_settings(scratch.path(), some_settings());
  fake_run(scratch / "b-seed-1", 2.0);
  fake_run(scratch / "b-seed-2", 4.0);
  Comparison comparison = read_comparison(scratch.path());
  EXPECT_EQ(comparison.models[2].num_pairs, 0u);
  EXPECT_TRUE(comparison_json(comparison)["models"][2]["minus_loss_of_c"].is_null());
  EXPECT_EQ(format_comparison(comparison).find("+0.0000"), std::string::npos);
  fake_run(scratch / "c-seed-2", 3.5);
  comparison = read_comparison(scratch.path());
  EXPECT_EQ(comparison.models[2].num_pairs, 1u);
  EXPECT_EQ(comparison.models[2].excess.mean, 0.5);
  const std::string text = format_comparison(comparison);
  EXPECT_NE(text.find("+0.5000"), std::string::npos);
  EXPECT_EQ(text.find("+0.5000 ±"), std::string::npos);
}

// What repeats a model, or varies it, is compared with it: at another rate that would say nothing.
TEST(LearningRates, VariantsTakeTheRateOfTheirModel) {
  LearningRates rates;
  parse_rates({"0.002", "b=0.001", "c=0.004", "dense=0.003"}, rates);
  EXPECT_EQ(rates.of("a"), 0.002);
  EXPECT_EQ(rates.of("b-fp32"), 0.001);
  EXPECT_EQ(rates.of("c-fp32"), 0.004);
  EXPECT_EQ(rates.of("c-shared-2"), 0.004);
  EXPECT_EQ(rates.of("c-shared-2-fp32"), 0.004);
  EXPECT_EQ(rates.of("dense-total"), 0.003);
  EXPECT_EQ(rates.of("a-fp32"), 0.002);
  parse_rates({"b-fp32=0.005", "c-shared-2=0.006"}, rates);
  EXPECT_EQ(rates.of("b-fp32"), 0.005);
  EXPECT_EQ(rates.of("c-shared-2-fp32"), 0.006);
}

TEST(ComparisonFolder, NoWinnerThatTheSeedsDoNotDecide) {
  const ScratchFolder scratch;
  CompareSettings settings = some_settings();
  settings.num_seeds = 3;
  write_settings(scratch.path(), settings);
  const auto best = [&](const std::vector<std::pair<const char*, double>>& runs) {
    for (const auto& [run, loss] : runs) fake_run(scratch / run, loss);
    return decided_best(read_comparison(scratch.path()));
  };
  EXPECT_EQ(best({{"a-seed-1", 3.0}, {"a-seed-2", 3.1}, {"a-seed-3", 3.2}}), std::nullopt);
  // (b) is lower with every seed, by about as much: decided, though the seeds differ by more.
  EXPECT_EQ(best({{"b-seed-1", 2.9}, {"b-seed-2", 3.01}, {"b-seed-3", 3.1}}), "b");
  // (c) has the lowest mean, but not with every seed.
  EXPECT_EQ(best({{"c-seed-1", 2.0}, {"c-seed-2", 3.0}, {"c-seed-3", 3.3}}), std::nullopt);
  // Two of three seeds are no comparison of all.
  EXPECT_EQ(best({{"c-seed-1", 2.8}, {"c-seed-2", 2.9}, {"c-seed-3", 3.0}}), "c");
  fs::remove_all(scratch / "c-seed-3");
  EXPECT_EQ(best({}), std::nullopt);
  const OrderedJson json = comparison_json(read_comparison(scratch.path()));
  EXPECT_TRUE(json.at("decided_best").is_null());
}

}  // namespace
}  // namespace dsmoe::report

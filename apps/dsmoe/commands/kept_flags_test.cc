// Flags kept in run.json and given again.
#include "commands/kept_flags.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"

namespace dsmoe::app {
namespace {

using Flags = std::vector<Given::Flag>;

const Flags kBegun{{"--steps", "N", {"30"}},  {"--data", "FILE", {"a.txt", "/b.txt"}},
                   {"--recompute", "", {}},   {"--lr", "X", {"0.001"}},
                   {"--out", "RUN", {"run"}}, {"--threads", "N", {"2"}}};

TEST(KeptFlags, PathsAreAbsoluteAndFlagsOfOneProcessAreLeftOut) {
  const OrderedJson kept = flags_to_keep(kBegun);
  EXPECT_EQ(kept["--steps"], "30");
  EXPECT_EQ(kept["--data"][0], (std::filesystem::current_path() / "a.txt").string());
  EXPECT_EQ(kept["--data"][1], "/b.txt");
  EXPECT_EQ(kept["--recompute"], true);
  EXPECT_FALSE(kept.contains("--out"));
  EXPECT_FALSE(kept.contains("--threads"));
}

std::string words_of(const Flags& flags) {
  std::string text;
  for (const Given::Flag& flag : flags) {
    text += flag.name;
    for (const std::string& value : flag.values) text += "=" + value;
    text += " ";
  }
  return text;
}

TEST(KeptFlags, WhatIsNotGivenAgainIsFilled) {
  const MergedFlags merged =
      merge_flags(flags_to_keep({{"--steps", "N", {"30"}}, {"--recompute", "", {}}}), {}, "file");
  EXPECT_EQ(words_of(merged.flags), "--steps=30 --recompute ");
  EXPECT_TRUE(merged.changed.empty());
}

TEST(KeptFlags, WhatAgreesIsNoChangeAndWhatDiffersIsNamed) {
  const MergedFlags merged = merge_flags(flags_to_keep(kBegun),
                                         {{"--steps", "N", {"60"}},
                                          {"--lr", "X", {"1e-3"}},
                                          {"--data", "FILE", {"a.txt", "/b.txt"}},
                                          {"--clip", "X", {"2"}},
                                          {"--threads", "N", {"1"}}},
                                         "file");
  EXPECT_EQ(merged.changed, (std::vector<std::string>{"--steps 60 instead of 30", "--clip 2"}));
  EXPECT_EQ(words_of(merged.flags),
            "--steps=60 --lr=1e-3 --data=a.txt=/b.txt --clip=2 --threads=1 --recompute ");
}

TEST(KeptFlags, WhatNoOneWroteIsRefused) {
  for (const char* kept : {R"({"steps": "3"})", R"({"--steps": 3})", R"({"--steps": [3]})",
                           R"({"--steps": []})", R"({"--steps": false})"}) {
    EXPECT_THROW(merge_flags(OrderedJson::parse(kept), {}, "file"), Error) << kept;
  }
}

}  // namespace
}  // namespace dsmoe::app

// Paths, weights, folders.
#include "data/data_files.h"

#include <gtest/gtest.h>

#include "base/scratch_folder.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::write_file;

class DataFiles : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name) const {
    fs::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, "text");
  }
  ScratchFolder folder_;
};

TEST_F(DataFiles, WeightsAndPlainPaths) {
  put("a.txt");
  put("b:3");
  EXPECT_FALSE(find_sources({at("a.txt")})[0].weight);
  const auto sources = find_sources({at("a.txt") + ":0.7", at("missing") + ":3e-1"});
  EXPECT_EQ(sources[0].files[0], at("a.txt"));
  EXPECT_EQ(sources[0].weight, 0.7);
  EXPECT_EQ(sources[1].files[0], at("missing"));  // told when it is opened
  EXPECT_EQ(sources[1].weight, 0.3);
  EXPECT_FALSE(find_sources({at("b:3")})[0].weight);
  EXPECT_EQ(find_sources({at("b:3") + ":2"})[0].weight, 2.0);
  EXPECT_EQ(find_sources({at("c:d")})[0].files[0], at("c:d"));
}

TEST_F(DataFiles, AFolderIsOneSourceOfItsFilesInOrder) {
  for (const char* name : {"x/corpus/b.txt", "x/corpus/a.jsonl", "x/corpus/deep/c.txt",
                           "x/corpus/.hidden", "x/corpus/.git/d.txt", "y/corpus/e.txt"}) {
    put(name);
  }
  const auto one = find_sources({at("x/corpus/")});
  ASSERT_EQ(one[0].files.size(), 3u);
  EXPECT_EQ(one[0].name, "corpus");
  EXPECT_EQ(one[0].files[0].filename(), "a.jsonl");
  EXPECT_EQ(one[0].files[2].filename(), "c.txt");
  const auto two = find_sources({at("x/corpus") + ":1", at("y/corpus") + ":1"});
  EXPECT_EQ(two[0].name, at("x/corpus"));  // told apart by their paths
  EXPECT_EQ(files_of(two).size(), 4u);
}

TEST_F(DataFiles, LinksAreFollowedOnceAndOddThingsNamed) {
  put("corpus/a.txt");
  put("elsewhere/b.txt");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "corpus/linked");
  fs::create_directory_symlink(folder_ / "corpus", folder_ / "elsewhere/back");
  fs::create_symlink(folder_ / "elsewhere/b.txt", folder_ / "corpus/file-link.txt");
  const auto one = find_sources({at("corpus")});
  ASSERT_EQ(one[0].files.size(), 3u);
  EXPECT_EQ(one[0].files[0], at("corpus/a.txt"));
  EXPECT_EQ(one[0].files[1], at("corpus/file-link.txt"));
  EXPECT_EQ(one[0].files[2], at("corpus/linked/b.txt"));
  // A link to nothing is missing text: it is not left out without a word.
  fs::create_symlink(folder_ / "gone", folder_ / "corpus/gone.txt");
  const auto two = find_sources({at("corpus")});
  ASSERT_EQ(two[0].files.size(), 4u);
  EXPECT_EQ(two[0].files[2], at("corpus/gone.txt"));
}

TEST_F(DataFiles, WhatIsWrittenIsNotReadAsText) {
  put("corpus/a.txt");
  put("corpus-2/b.txt");
  const auto sources = find_sources({at("corpus"), at("corpus-2/b.txt")});
  const auto refusal = [&](const fs::path& out) {
    return error_of([&] { check_outside(sources, out, "--out"); });
  };
  for (const char* out : {"corpus", "corpus/run", "corpus/new/run", "corpus-2/../corpus/run"}) {
    EXPECT_NE(refusal(folder_ / out).find("would be read as text"), std::string::npos) << out;
  }
  for (const char* out : {"run", "corpus-2", "corpus-3", "corpus/.run", "corpus/.a/run"}) {
    EXPECT_EQ(refusal(folder_ / out), "") << out;
  }
}

TEST_F(DataFiles, Refusals) {
  put("a.txt");
  put("b.txt");
  fs::create_directories(folder_ / "empty");
  const auto refusal = [](const std::vector<std::string>& words) {
    return error_of([&] { find_sources(words); });
  };
  EXPECT_NE(refusal({at("a.txt") + ":0.7", at("b.txt")}).find("it has no weight, others have"),
            std::string::npos);
  for (const char* weight : {":0", ":-1", ":inf", ":nan", ":1e308", ":1e-320"}) {
    EXPECT_NE(refusal({at("a.txt") + weight}).find("expected a weight above zero"),
              std::string::npos)
        << weight;
  }
  EXPECT_NE(refusal({at("a.txt") + ":1", at("a.txt") + ":2"}).find("is named twice"),
            std::string::npos);
  EXPECT_NE(refusal({at("empty")}).find("no file in it"), std::string::npos);
  const std::string weighted = error_of([&] {
    find_unweighted({at("a.txt") + ":0.5", at("b.txt") + ":0.5"}, "--text");
  });
  EXPECT_NE(weighted.find("--text"), std::string::npos) << weighted;
  EXPECT_NE(weighted.find("it takes no weights here"), std::string::npos) << weighted;
}

}  // namespace
}  // namespace dsmoe::data

// What --data names: files, folders of files, and the share of each.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dsmoe::data {

struct NamedSource {
  std::string name;                          // of a folder; empty: that of the file
  std::vector<std::filesystem::path> files;  // of a folder: all in it and below, by path
  std::optional<double> weight;
  std::filesystem::path folder = {};  // as it was named; empty: a file
};

// Each word is "PATH" or "PATH:WEIGHT". A path that exists as it is written has no weight; hidden
// files of a folder are passed over. Throws Error(io) for what is not there, Error(usage) where
// only some have weights, or one with a weight is named twice.
std::vector<NamedSource> find_sources(const std::vector<std::string>& words,
                                      const std::string& flag = "--data");

// The same where no weight has a meaning: one is refused.
std::vector<NamedSource> find_unweighted(const std::vector<std::string>& words,
                                         const std::string& flag = "--data");

// What is written into `folder`, such as that of --out, must not be read as text the next time.
// Throws Error(usage) where it lies in a folder of `sources`, unless hidden there.
void check_outside(const std::vector<NamedSource>& sources, const std::filesystem::path& folder,
                   const std::string& flag);

// All files of all sources.
std::vector<std::filesystem::path> files_of(const std::vector<NamedSource>& sources);

}  // namespace dsmoe::data

// Words -> paths and weights; folders -> their files.
#include "data/data_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::data {
namespace {

namespace fs = std::filesystem;

struct Word {
  fs::path path;
  std::optional<double> weight;
};

Word split_weight(const std::string& word, const std::string& flag) {
  std::error_code ignored;
  const std::size_t colon = word.rfind(':');
  if (colon == std::string::npos || fs::exists(word, ignored)) return {.path = word};
  double weight = 0;
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data() + colon + 1, end, weight);
  if (error != std::errc() || rest != end) return {.path = word};
  constexpr double kLeast = 1e-6, kMost = 1e6;  // whoever sums or divides them meets no infinity
  if (!(weight >= kLeast && weight <= kMost)) {
    fail(ErrorKind::usage, "{} {}: expected a weight above zero, from {} to {}", flag,
         in_quotes(word), kLeast, kMost);
  }
  return {.path = word.substr(0, colon), .weight = weight};
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

// Folders that links lead to are read as well, and each folder once: links may go in circles. What
// is neither file nor folder is listed too, so that whoever opens it says what it is.
void list_files(const fs::path& folder, std::set<fs::path>& seen, std::vector<fs::path>& files) {
  std::error_code error;
  if (!seen.insert(fs::canonical(folder, error)).second) return;
  std::vector<fs::path> entries;
  fs::directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) entries.push_back(entry->path());
  if (error) fail(ErrorKind::io, "cannot list {}: {}", folder.string(), error.message());
  std::sort(entries.begin(), entries.end());  // which way to a folder comes first is not chance
  for (const fs::path& path : entries) {
    if (is_hidden(path)) continue;
    if (fs::is_directory(path, error)) {
      list_files(path, seen, files);
    } else {
      files.push_back(path);
    }
  }
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::set<fs::path> seen;
  list_files(folder, seen, files);
  if (files.empty()) {
    fail(ErrorKind::input, "{}: no file in it; expected text or JSONL", folder.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void check_weights(const std::vector<std::string>& words, const std::string& flag,
                   const std::vector<NamedSource>& sources) {
  const auto is_weighted = [](const NamedSource& source) { return source.weight.has_value(); };
  if (std::none_of(sources.begin(), sources.end(), is_weighted)) return;
  std::set<fs::path> seen;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].weight) {
      fail(ErrorKind::usage,
           "{} {}: it has no weight, others have; give each one, such as {}:0.5, or none", flag,
           in_quotes(words[i]), words[i]);
    }
    for (const fs::path& file : sources[i].files) {
      if (seen.insert(fs::weakly_canonical(file)).second) continue;
      fail(ErrorKind::usage, "{}: {} is named twice; give it one weight", flag, file.string());
    }
  }
}

// Folders of one name are told apart by their paths.
void name_folders(std::vector<NamedSource>& sources, const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) {
    names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].name.empty()) continue;
    const bool is_alone = std::count(names.begin(), names.end(), names[i]) == 1;
    sources[i].name = is_alone ? names[i] : paths[i].string();
  }
}

}  // namespace

std::vector<NamedSource> find_sources(const std::vector<std::string>& words,
                                      const std::string& flag) {
  std::vector<NamedSource> sources;
  std::vector<fs::path> paths;
  for (const std::string& text : words) {
    const Word word = split_weight(text, flag);
    std::error_code ignored;
    NamedSource source{.weight = word.weight};
    if (fs::is_directory(word.path, ignored)) {
      source.name = word.path.string();
      source.files = files_in(word.path);
      source.folder = word.path;
    } else {
      source.files.push_back(word.path);
    }
    paths.push_back(word.path);
    sources.push_back(std::move(source));
  }
  check_weights(words, flag, sources);
  name_folders(sources, paths);
  return sources;
}

std::vector<NamedSource> find_unweighted(const std::vector<std::string>& words,
                                         const std::string& flag) {
  std::vector<NamedSource> sources = find_sources(words, flag);
  if (!sources.empty() && sources.front().weight) {
    fail(ErrorKind::usage, "{} {}: it takes no weights here, expected a path alone", flag,
         in_quotes(words.front()));
  }
  return sources;
}

void check_outside(const std::vector<NamedSource>& sources, const fs::path& folder,
                   const std::string& flag) {
  for (const NamedSource& source : sources) {
    if (source.folder.empty()) continue;
    const fs::path below =
        fs::weakly_canonical(folder).lexically_relative(fs::canonical(source.folder));
    if (below.empty() || *below.begin() == "..") continue;
    const bool is_passed_over = below != "." && std::any_of(below.begin(), below.end(), is_hidden);
    if (is_passed_over) continue;
    fail(ErrorKind::usage,
         "{} {} lies in the texts of {}, so what is written there would be read as text; choose "
         "another",
         flag, folder.string(), source.folder.string());
  }
}

std::vector<fs::path> files_of(const std::vector<NamedSource>& sources) {
  std::vector<fs::path> files;
  for (const NamedSource& source : sources) {
    files.insert(files.end(), source.files.begin(), source.files.end());
  }
  return files;
}

}  // namespace dsmoe::data

// Looks into the folder, and words what is wrong.
#include "commands/model_choice.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "report/comparison_folder.h"
#include "store/checkpoint.h"
#include "train/run_record.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

// "organisation/name", as model hubs call their models.
bool is_hub_name(const std::string& path) {
  const std::size_t slash = path.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < path.size() &&
         path.find('/', slash + 1) == std::string::npos && path.front() != '.' &&
         path.front() != '~' && path.find(' ') == std::string::npos;
}

[[noreturn]] void fail_missing(const std::string& path, std::string_view expected) {
  std::string advice;
  if (is_hub_name(path)) {
    advice = fmt::format(
        "; dsmoe fetches nothing: if this is a model of a hub, download it first, such as with\n"
        "  hf download {} --local-dir {}\nand name that folder",
        path, path.substr(path.find('/') + 1));
  }
  fail(ErrorKind::io, "{}: no such folder; expected a {}{}", path, expected, advice);
}

// A comparison holds many models; which of them is meant, nobody can know.
[[noreturn]] void fail_comparison(const fs::path& folder) {
  std::vector<std::string> runs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.is_directory(ignored)) continue;
    if (store::newest_checkpoint(entry.path(), store::Verify::lengths).folder) {
      runs.push_back(entry.path().filename().string());
    }
  }
  std::sort(runs.begin(), runs.end());
  fail(ErrorKind::input, "{}: a comparison of dsmoe compare; {}", folder.string(),
       runs.empty() ? "none of its runs has a checkpoint yet"
                    : fmt::format("name one of its {} runs, such as {}", runs.size(),
                                  (folder / runs.front()).string()));
}

// `missing`: the file that makes a folder what was asked for.
ModelChoice choose_checkpoint(const fs::path& run, std::string_view missing,
                              std::string_view expected) {
  if (const auto record = train::RunRecord::read_if_whole(run)) {
    if (const auto best = record->best()) {
      const fs::path folder = run / store::checkpoint_name(best->step);
      std::error_code ignored;
      if (fs::exists(folder / store::kManifestName, ignored)) {
        return {.folder = folder.string(),
                .why = fmt::format("the best checkpoint of {} (validation loss {:.4f})",
                                   run.string(), best->loss)};
      }
    }
  }
  const store::NewestCheckpoint newest = store::newest_checkpoint(run, store::Verify::lengths);
  if (newest.folder) {
    std::string why = fmt::format("the newest checkpoint of {}", run.string());
    if (!newest.passed_over.empty()) {
      why += fmt::format(" but {}: {}", newest.passed_over.front().name,
                         newest.passed_over.front().reason);
    }
    return {.folder = newest.folder->string(), .why = why};
  }
  if (!newest.passed_over.empty()) {
    fail(ErrorKind::input, "{}: none of its checkpoints is whole: {}", run.string(),
         newest.passed_over.front().reason);
  }
  std::error_code ignored;
  if (fs::exists(run / report::kCompareFile, ignored)) fail_comparison(run);
  const bool is_run = fs::exists(run / train::kRunRecordName, ignored);
  fail(ErrorKind::input, "{}: {}; expected a {}", run.string(),
       is_run ? "a training run without a checkpoint yet" : fmt::format("no {} in it", missing),
       expected);
}

}  // namespace

ModelChoice choose_holder(const std::string& path, std::string_view name) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  if (!is_folder || fs::exists(fs::path(path) / name, ignored)) return {.folder = path, .why = ""};
  return choose_checkpoint(path, name, fmt::format("file {0}, a folder with one, or a run", name));
}

ModelChoice choose_model(const std::string& path, std::string_view expected) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (status.type() == fs::file_type::not_found) fail_missing(path, expected);
  const bool has_config =
      fs::status(fs::path(path) / "config.json", ignored).type() != fs::file_type::not_found;
  if (status.type() != fs::file_type::directory || has_config) return {.folder = path, .why = ""};
  return choose_checkpoint(path, "config.json", expected);
}

}  // namespace dsmoe::app
